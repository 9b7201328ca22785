//! gRPC's usual unary request: one whole message, without compression and without binary metadata.
//!
//! All other requests, and invalid ones, are events of HTTP/2 alone, which Python reads.

use bytes::{BufMut, Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, Method};

/// A message begins with a byte that says whether it is compressed, and four of length.
pub const PREFIX: usize = 5;
const CONTENT_TYPE: &[u8] = b"application/grpc";
/// More digits are no timeout.
const MAX_DIGITS: usize = 8;

/// Return the seconds of the caller's timeout, `None` inside without one, if a request is a usual unary one.
pub fn usual(head: &Parts, body: &[Bytes], limit: usize) -> Option<Option<f64>> {
    if head.method != Method::POST || !is_grpc(&head.headers) || !is_message(body, limit) {
        return None;
    }
    let is_plain = head.headers.get("grpc-encoding").is_none_or(|encoding| encoding == "identity");
    if !is_plain || head.headers.keys().any(|name| name.as_str().ends_with("-bin")) {
        return None;
    }
    match head.headers.get("grpc-timeout") {
        Some(timeout) => seconds(timeout.as_bytes()).map(Some),
        None => Some(None),
    }
}

/// Return a message with its prefix.
pub fn framed(message: &[u8]) -> Option<Bytes> {
    let size = u32::try_from(message.len()).ok()?;
    let mut frame = BytesMut::with_capacity(PREFIX + message.len());
    frame.put_u8(0);
    frame.put_u32(size);
    frame.put_slice(message);
    Some(frame.freeze())
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(rest) = headers.get("content-type").and_then(|value| value.as_bytes().strip_prefix(CONTENT_TYPE)) else {
        return false;
    };
    matches!(rest.first(), None | Some(b'+' | b';'))
}

fn is_message(body: &[Bytes], limit: usize) -> bool {
    let [only] = body else { return false };
    let Some((prefix, message)) = only.split_at_checked(PREFIX) else { return false };
    let size = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
    prefix[0] == 0 && usize::try_from(size) == Ok(message.len()) && message.len() <= limit
}

fn seconds(timeout: &[u8]) -> Option<f64> {
    let (unit, digits) = timeout.split_last()?;
    if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let scale = match unit {
        b'H' => 3_600.0,
        b'M' => 60.0,
        b'S' => 1.0,
        b'm' => 1e-3,
        b'u' => 1e-6,
        b'n' => 1e-9,
        _ => return None,
    };
    Some(f64::from(count) * scale)
}
