//! Requests the history of a market and waits for its end; prints the notifications of a topic, without end; or prints
//! the states of the requests whose ids it reads, one a line:
//!
//!     cargo run -- 127.0.0.1:50051 history BTC/USDT.SIM 3600 2024-01-01T00:00:00Z 2024-01-02T00:00:00Z
//!     cargo run -- 127.0.0.1:50051 follow RESPONSE:my-client
//!     cargo run -- 127.0.0.1:50051 states < ids.txt

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

#[allow(clippy::all, dead_code)]
mod stubs {
    tonic::include_proto!("stubs");
}
use stubs::dexorder::ingest::v1::SubmitHistoricalRequest;
use stubs::dexorder::relay::v1::history_service_client::HistoryServiceClient;
use stubs::dexorder::relay::v1::watch_notifications_response::Message;
use stubs::dexorder::relay::v1::{
    GetRequestRequest, Notification, WatchNotificationsRequest, WatchNotificationsResponse,
};

/// The longest time without an answer: the relay sends keep_alive every 20 seconds.
const SILENCE: Duration = Duration::from_secs(60);

type Client = HistoryServiceClient<Channel>;
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
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [address, "history", ticker, period, start, end] => {
            history(connect(address)?, ticker, period, start, end).await
        }
        [address, "follow", topic] => follow(connect(address)?, topic).await,
        [address, "states"] => states(connect(address)?).await,
        _ => Err("arguments: ADDRESS history TICKER PERIOD_SECONDS START END | ADDRESS follow TOPIC | ADDRESS states".into()),
    }
}

fn connect(address: &str) -> Result<Client, AnyError> {
    Ok(Client::new(Endpoint::from_shared(format!("http://{address}"))?.connect_lazy()))
}

/// Submits a request and waits for its notification.
async fn history(client: Client, ticker: &str, period: &str, start: &str, end: &str) -> Result<(), AnyError> {
    // The id is ours, so the call may be repeated after a lost connection.
    let request = SubmitHistoricalRequest {
        request_id: format!("rust-{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos()),
        ticker: ticker.into(),
        period_seconds: period.parse()?,
        start_time: nanoseconds(start)?,
        end_time: nanoseconds(end)?,
        ..Default::default()
    };
    let response = repeated(async || client.clone().submit_historical(request.clone()).await).await?.into_inner();
    let submitted = response.answer.ok_or("the response is empty")?;
    if let Some(message) = submitted.error_message.as_ref().filter(|message| !message.is_empty()) {
        return Err(format!("{}: {message}", submitted.status().as_str_name()).into());
    }
    let notification = Subscription::new(client, &submitted.notification_topic).next().await?;
    let ended = notification.ready.ok_or("the notification is empty")?;
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

/// Prints the notifications of a topic.
async fn follow(client: Client, topic: &str) -> Result<(), AnyError> {
    let mut notifications = Subscription::new(client, topic);
    loop {
        let ready = notifications.next().await?.ready.ok_or("the notification is empty")?;
        println!("{} {}", ready.request_id, ready.status().as_str_name());
    }
}

/// Prints the state of each request whose id is a line of stdin.
async fn states(client: Client) -> Result<(), AnyError> {
    for line in std::io::stdin().lines() {
        let request = GetRequestRequest { request_id: line? };
        let answer = repeated(async || client.clone().get_request(request.clone()).await).await?.into_inner();
        let record = answer.record.ok_or("the record is empty")?;
        println!("{} {}", request.request_id, record.state().as_str_name());
    }
    Ok(())
}

/// Reads the notifications of a topic, across restarts of the relay.
struct Subscription {
    client: Client,
    request: WatchNotificationsRequest, // its `after` is the last position received
    stream: Option<Streaming<WatchNotificationsResponse>>,
}

impl Subscription {
    fn new(client: Client, topic: &str) -> Self {
        Self { client, request: WatchNotificationsRequest { topic: topic.into(), after: None }, stream: None }
    }

    /// Returns the next notification.
    async fn next(&mut self) -> Result<Notification, AnyError> {
        loop {
            let answer = match self.receive().await {
                Ok(answer) => answer,
                Err(status) => {
                    self.stream = None;
                    pause_if_lost(status).await?;
                    continue;
                }
            };
            match answer.message {
                Some(Message::Opened(start)) => self.request.after = start.cursor,
                Some(Message::Reset(start)) => {
                    eprintln!("reset: the relay can't continue at our position; all that is stored follows");
                    self.request.after = start.cursor;
                }
                Some(Message::Notification(notification)) => {
                    self.request.after = notification.cursor.clone();
                    return Ok(notification);
                }
                Some(Message::KeepAlive(_)) | None => {} // None: a kind of answer that a newer relay has
            }
        }
    }

    /// Returns the next answer, of a new stream if there is none.
    async fn receive(&mut self) -> Result<WatchNotificationsResponse, Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => self.stream.insert(self.client.watch_notifications(self.request.clone()).await?.into_inner()),
        };
        match tokio::time::timeout(SILENCE, stream.message()).await {
            Ok(answer) => answer?.ok_or_else(|| Status::unavailable("the stream has ended")),
            Err(_) => Err(Status::unavailable("the stream is silent")),
        }
    }
}

/// Makes a call, again while the relay can't be reached, or is stopped.
async fn repeated<T>(call: impl AsyncFn() -> Result<T, Status>) -> Result<T, AnyError> {
    loop {
        match call().await {
            Ok(answer) => return Ok(answer),
            Err(status) => pause_if_lost(status).await?,
        }
    }
}

/// Waits before the next attempt if the relay could not be reached, or was stopped. Returns any other error.
async fn pause_if_lost(status: Status) -> Result<(), AnyError> {
    // All errors of the relay have details: without them, these codes are of the connection, or of a proxy that reset the
    // stream.
    let is_of_proxy =
        matches!(status.code(), Code::Internal | Code::Unknown | Code::Cancelled) && status.details().is_empty();
    if status.code() != Code::Unavailable && !is_of_proxy {
        return Err(explained(status));
    }
    eprintln!("waiting for the relay: {status}");
    tokio::time::sleep(Duration::from_secs(1)).await;
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
