//! Requests the history of a market and waits for its notification:
//!
//!     cargo run -- 127.0.0.1:50051 BTC/USDT.SIM 3600 2024-01-01T00:00:00Z 2024-01-02T00:00:00Z

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_types::StatusExt;

#[allow(clippy::all)]
mod stubs {
    tonic::include_proto!("stubs");
}
use stubs::dexorder::ingest::v1::{SubmitHistoricalRequest, submit_response::SubmitStatus};
use stubs::dexorder::relay::v1::history_service_client::HistoryServiceClient;
use stubs::dexorder::relay::v1::watch_notifications_response::Message;
use stubs::dexorder::relay::v1::{Notification, WatchNotificationsRequest};

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
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
    let mut history = HistoryServiceClient::new(channel);

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
    let submitted = loop {
        match history.submit_historical(request.clone()).await {
            Err(status) if is_lost(&status) => pause(&status).await,
            answer => break answer.map_err(explained)?.into_inner(),
        }
    };
    if let Some(message) = submitted.error_message.as_ref().filter(|message| !message.is_empty()) {
        return Err(format!("{}: {message}", submitted.status().as_str_name()).into());
    }
    assert!(matches!(submitted.status(), SubmitStatus::Queued | SubmitStatus::Duplicate));

    let mut watched = WatchNotificationsRequest { topic: submitted.notification_topic, after: None };
    let notification = loop {
        match next(&mut history, &mut watched).await {
            Err(status) if is_lost(&status) => pause(&status).await,
            answer => break answer.map_err(explained)?,
        }
    };
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

/// Returns the next notification. Afterwards `watched.after` is the last position received, so that the same call resumes.
async fn next(
    history: &mut HistoryServiceClient<Channel>,
    watched: &mut WatchNotificationsRequest,
) -> Result<Notification, Status> {
    let mut answers = history.watch_notifications(watched.clone()).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        match answer.message {
            Some(Message::Opened(start)) => watched.after = start.cursor,
            Some(Message::Reset(start)) => {
                eprintln!("the relay no longer has all that follows our cursor; all that is stored follows");
                watched.after = start.cursor;
            }
            Some(Message::Notification(notification)) => {
                watched.after = notification.cursor.clone();
                return Ok(notification);
            }
            None => {} // a kind of answer that a newer relay has
        }
    }
    Err(Status::unavailable("the stream has ended"))
}

/// Says whether the relay could not be reached, or was stopped; of a connection that breaks, tonic makes Unknown.
fn is_lost(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown)
}

async fn pause(status: &Status) {
    eprintln!("waiting for the relay: {status}");
    tokio::time::sleep(Duration::from_secs(1)).await;
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
