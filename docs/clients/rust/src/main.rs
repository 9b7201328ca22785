//! Requests the history of a market and waits for its notification:
//!
//!     cargo run -- 127.0.0.1:50051 BTC/USDT.SIM 3600 2024-01-01T00:00:00Z 2024-01-02T00:00:00Z

use std::time::{SystemTime, UNIX_EPOCH};

use tonic::Status;
use tonic_types::StatusExt;

#[allow(clippy::all)]
mod stubs {
    tonic::include_proto!("stubs");
}
use stubs::dexorder::ingest::v1::{SubmitHistoricalRequest, submit_response::SubmitStatus};
use stubs::dexorder::relay::v1::{WatchNotificationsRequest, relay_service_client::RelayServiceClient};

type AnyError = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, ticker, period, start, end] = arguments.as_slice() else {
        return Err("arguments: ADDRESS TICKER PERIOD_SECONDS START END".into());
    };
    let mut relay = RelayServiceClient::connect(format!("http://{address}")).await?;

    // The id is ours, so repeating the call after a lost connection changes nothing.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let request = SubmitHistoricalRequest {
        request_id: format!("rust-{}", now.as_nanos()),
        ticker: ticker.clone(),
        period_seconds: period.parse()?,
        start_time: nanoseconds(start)?,
        end_time: nanoseconds(end)?,
        ..Default::default()
    };
    let submitted = relay.submit_historical(request).await.map_err(explained)?.into_inner();
    if let Some(message) = submitted.error_message.as_ref().filter(|message| !message.is_empty()) {
        return Err(format!("{}: {message}", submitted.status().as_str_name()).into());
    }
    assert!(matches!(submitted.status(), SubmitStatus::Queued | SubmitStatus::Duplicate));

    // After a break: the same call with after_cursor set to the last cursor received.
    let topic = WatchNotificationsRequest { topic: submitted.notification_topic, after_cursor: 0 };
    let mut notifications = relay.subscribe_notifications(topic).await.map_err(explained)?.into_inner();
    let answer = notifications.message().await.map_err(explained)?.ok_or("the stream has ended")?;
    let ended = answer.notification.ok_or("the answer has no notification")?;
    println!(
        "{}: {} rows in {}.{} {}",
        ended.status().as_str_name(),
        ended.row_count,
        ended.iceberg_namespace,
        ended.iceberg_table,
        ended.error_message()
    );
    Ok(())
}

fn nanoseconds(time: &str) -> Result<u64, AnyError> {
    let time: prost_types::Timestamp = time.parse()?;
    Ok(u64::try_from(time.seconds)? * 1_000_000_000)
}

/// Returns a failed call's text and the fields that it names.
fn explained(status: Status) -> AnyError {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    if let Some(bad) = status.get_details_bad_request() {
        for violation in bad.field_violations {
            text += &format!("; field {}: {}", violation.field, violation.description);
        }
    }
    text.into()
}
