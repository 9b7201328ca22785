//! Writes the stubs from the protos, at each build whose protos have changed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = "../../../protos";
    println!("cargo:rerun-if-changed={protos}");
    let files = protox::compile(["dexorder/relay/v1/history_service.proto"], [protos])?;
    tonic_prost_build::configure()
        .build_server(false)
        .include_file("stubs.rs") // the packages as modules: dexorder::relay::v1
        .compile_fds(files)?;
    Ok(())
}
