//! One stream: its request as it comes, and its answer as far as flow control lets it out.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Error, Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};

use crate::wakers::{StreamWaker, Woken};

/// Bytes of an answer that a stream keeps before its data waits, though the client's windows have room for more.
pub const SEND_BUFFER: usize = 64 * 1024;

/// What a visit of a stream has found.
#[derive(Default)]
pub struct Found {
    pub body: Vec<Bytes>,
    pub ended: bool,
    pub reset: Option<u32>,
    pub writable: bool,
}

pub struct Stream {
    request: Option<RecvStream>,
    /// Bytes of the request that count against the windows until they are consumed.
    unconsumed: usize,
    response: SendResponse<Bytes>,
    answer: Option<SendStream<Bytes>>,
    waits: bool,
    alarm: Arc<StreamWaker>,
    waker: Waker,
}

impl Stream {
    pub fn new(id: u32, request: RecvStream, response: SendResponse<Bytes>, woken: &Woken) -> Self {
        let alarm = StreamWaker::new(id, woken);
        let waker = Waker::from(alarm.clone());
        Self { request: Some(request), unconsumed: 0, response, answer: None, waits: false, alarm, waker }
    }

    /// Read what has come; whatever comes later wakes the stream.
    pub fn visit(&mut self) -> Found {
        self.alarm.rearm();
        let mut found = Found::default();
        self.read(&mut found);
        let mut cx = Context::from_waker(&self.waker);
        let reset = match &mut self.answer {
            Some(answer) => answer.poll_reset(&mut cx),
            None => self.response.poll_reset(&mut cx),
        };
        if let Poll::Ready(outcome) = reset {
            found.reset = Some(code_of(outcome));
        }
        if self.waits && found.reset.is_none() {
            found.writable = self.is_writable();
        }
        found
    }

    fn read(&mut self, found: &mut Found) {
        let Some(request) = &mut self.request else { return };
        let mut cx = Context::from_waker(&self.waker);
        loop {
            match request.poll_data(&mut cx) {
                Poll::Ready(Some(Ok(data))) => {
                    self.unconsumed += data.len();
                    found.body.push(data);
                }
                Poll::Ready(Some(Err(error))) => {
                    found.reset = Some(code_of(Err(error)));
                    return;
                }
                Poll::Ready(None) => break,
                Poll::Pending => return,
            }
        }
        found.ended = true;
        self.consume();
        self.request = None;
    }

    /// Let the client send as many more bytes as have come.
    pub fn consume(&mut self) {
        let size = mem::take(&mut self.unconsumed);
        if let Some(request) = &mut self.request {
            let _ = request.flow_control().release_capacity(size); // a stream that was reset has no window
        }
    }

    pub fn has_head(&self) -> bool {
        self.answer.is_some()
    }

    pub fn head(&mut self, fields: HeaderMap, end: bool) -> Result<(), Error> {
        let mut response = Response::new(());
        *response.headers_mut() = fields;
        self.answer = Some(self.response.send_response(response, end)?);
        Ok(())
    }

    /// Send data, and return whether more may follow at once; else the stream is found writable later.
    pub fn data(&mut self, data: Bytes) -> Result<bool, Error> {
        let Some(answer) = &mut self.answer else { return Ok(false) };
        answer.send_data(data, false)?;
        answer.reserve_capacity(1); // beyond what is buffered: it is granted once that may leave
        if answer.capacity() > 0 {
            return Ok(true);
        }
        self.waits = true;
        Ok(self.is_writable())
    }

    fn is_writable(&mut self) -> bool {
        let Some(answer) = &mut self.answer else { return false };
        let mut cx = Context::from_waker(&self.waker);
        let writable = matches!(answer.poll_capacity(&mut cx), Poll::Ready(Some(Ok(_))));
        self.waits = !writable;
        writable
    }

    pub fn trailers(&mut self, fields: HeaderMap) -> Result<(), Error> {
        match &mut self.answer {
            Some(answer) => answer.send_trailers(fields),
            None => self.head(fields, true),
        }
    }

    pub fn reset(&mut self, code: u32) {
        self.response.send_reset(Reason::from(code));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.consume(); // the connection's window outlives the stream
    }
}

fn code_of(outcome: Result<Reason, Error>) -> u32 {
    let reason = match outcome {
        Ok(reason) => Some(reason),
        Err(error) => error.reason(),
    };
    reason.unwrap_or(Reason::CANCEL).into()
}
