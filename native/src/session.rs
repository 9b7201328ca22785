//! One connection, from its preface to its end.

use std::collections::HashMap;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::server::{Builder, Connection, Handshake};
use h2::{Ping, PingPong, Reason};
use http::HeaderMap;
use http::request::Parts;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::fields::{Fields, Head};
use crate::pipe::Pipe;
use crate::stream::{Found, SEND_BUFFER, Stream};
use crate::unary;
use crate::wakers::Woken;

pub const REQUEST: u8 = 0;
pub const DATA: u8 = 1;
pub const RESET: u8 = 2;
pub const WRITABLE: u8 = 3;
pub const PONG: u8 = 4;
pub const UNARY: u8 = 5;

enum Event {
    Request { id: u32, head: Box<Parts>, body: Vec<Bytes>, ended: bool },
    Unary { id: u32, head: Box<Parts>, body: Vec<Bytes>, timeout: Option<f64> },
    Data { id: u32, body: Vec<Bytes>, ended: bool },
    Reset { id: u32, code: u32 },
    Writable { id: u32 },
    Pong,
}

enum State {
    Handshake(Pin<Box<Handshake<Pipe, Bytes>>>),
    Open(Box<Connection<Pipe, Bytes>>),
    Closed(String),
}

struct Inner {
    state: State,
    pipe: Pipe,
    streams: HashMap<u32, Stream>,
    woken: Woken,
    pings: Option<PingPong>,
    pings_out: usize,
    events: Vec<Event>,
    max_message_bytes: usize,
    answer_head: HeaderMap,
    answer_end: HeaderMap,
}

/// An HTTP/2 server session.
#[pyclass(frozen, module = "dexorder_http2")]
pub struct Session(Mutex<Inner>);

impl Session {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (*, stream_window, connection_window, max_streams, max_header_bytes, max_unread_resets,
        max_message_bytes, answer_head, answer_end, is_unix))]
    fn new(
        stream_window: u32,
        connection_window: u32,
        max_streams: u32,
        max_header_bytes: u32,
        max_unread_resets: usize,
        max_message_bytes: usize,
        answer_head: &Fields,
        answer_end: &Fields,
        is_unix: bool,
    ) -> Self {
        let pipe = Pipe::new(is_unix);
        let handshake = Builder::new()
            .initial_window_size(stream_window)
            .initial_connection_window_size(connection_window)
            .max_concurrent_streams(max_streams)
            .max_header_list_size(max_header_bytes)
            .max_pending_accept_reset_streams(max_unread_resets)
            .max_send_buffer_size(SEND_BUFFER)
            .handshake(pipe.clone());
        Self(Mutex::new(Inner {
            state: State::Handshake(Box::pin(handshake)),
            pipe,
            streams: HashMap::new(),
            woken: Woken::default(),
            pings: None,
            pings_out: 0,
            events: Vec::new(),
            max_message_bytes,
            answer_head: answer_head.0.clone(),
            answer_end: answer_end.0.clone(),
        }))
    }

    fn step<'py>(
        &self,
        py: Python<'py>,
        data: Option<&[u8]>,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyBytes>)> {
        let (events, output) = {
            let mut inner = self.inner();
            inner.advance(data);
            let events = mem::take(&mut inner.events);
            let mut buffers = inner.pipe.buffers();
            let output = PyBytes::new(py, &buffers.output);
            buffers.output.clear();
            (events, output)
        };
        let list = PyList::empty(py);
        for event in events {
            list.append(to_python(py, event)?)?;
        }
        Ok((list, output))
    }

    fn answer(&self, stream: u32, message: &[u8]) -> Option<bool> {
        self.inner().answer(stream, message)
    }

    fn head(&self, stream: u32, fields: &Fields) {
        if let Some(stream) = self.inner().streams.get_mut(&stream) {
            if !stream.has_head() {
                let _ = stream.head(fields.0.clone(), false); // of a stream that is gone
            }
        }
    }

    fn data(&self, stream: u32, data: &[u8]) -> bool {
        match self.inner().streams.get_mut(&stream) {
            Some(stream) => stream.data(Bytes::copy_from_slice(data)).unwrap_or(false),
            None => false,
        }
    }

    fn finish(&self, stream: u32, fields: &Fields) {
        if let Some(mut stream) = self.inner().streams.remove(&stream) {
            let _ = stream.trailers(fields.0.clone());
        }
    }

    fn reset(&self, stream: u32, code: u32) {
        if let Some(mut stream) = self.inner().streams.remove(&stream) {
            stream.reset(code);
        }
    }

    fn consume(&self, stream: u32) {
        if let Some(stream) = self.inner().streams.get_mut(&stream) {
            stream.consume();
        }
    }

    fn ping(&self) -> bool {
        let mut inner = self.inner();
        let sent = inner.pings.as_mut().is_some_and(|pings| pings.send_ping(Ping::opaque()).is_ok());
        inner.pings_out += usize::from(sent);
        sent
    }

    fn go_away(&self) {
        if let State::Open(connection) = &mut self.inner().state {
            connection.graceful_shutdown();
        }
    }

    fn abort(&self, code: u32) {
        let mut inner = self.inner();
        match &mut inner.state {
            State::Open(connection) => connection.abrupt_shutdown(Reason::from(code)),
            State::Handshake(_) => inner.state = State::Closed("it was aborted before its preface".to_owned()),
            State::Closed(_) => (),
        }
    }

    #[getter]
    fn closed(&self) -> Option<String> {
        match &self.inner().state {
            State::Closed(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    #[getter]
    fn opened(&self) -> bool {
        matches!(self.inner().state, State::Open(_))
    }

    #[getter]
    fn streams(&self) -> usize {
        self.inner().streams.len()
    }
}

impl Inner {
    /// Take input, poll the connection until it waits for more, and collect the events.
    fn advance(&mut self, data: Option<&[u8]>) {
        if let Some(data) = data {
            self.pipe.buffers().feed(data);
        }
        let mut cx = Context::from_waker(Waker::noop());
        if let State::Handshake(handshake) = &mut self.state {
            match handshake.as_mut().poll(&mut cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(mut connection)) => {
                    self.pings = connection.ping_pong();
                    self.state = State::Open(Box::new(connection));
                }
                Poll::Ready(Err(error)) => self.close(error.to_string()),
            }
        }
        self.accept(&mut cx);
        for id in self.woken.take() {
            if let Some(stream) = self.streams.get_mut(&id) {
                let found = stream.visit();
                self.note(id, found);
            }
        }
        if self.pings_out > 0 && self.pings.as_mut().is_some_and(|pings| pings.poll_pong(&mut cx).is_ready()) {
            self.pings_out -= 1;
            self.events.push(Event::Pong);
        }
    }

    fn accept(&mut self, cx: &mut Context<'_>) {
        loop {
            let State::Open(connection) = &mut self.state else { return };
            match connection.poll_accept(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok((request, response)))) => {
                    let id = response.stream_id().as_u32();
                    let (head, body) = request.into_parts();
                    let mut stream = Stream::new(id, body, response, &self.woken);
                    let found = stream.visit();
                    if found.reset.is_some() {
                        continue; // reset before anybody has seen it
                    }
                    self.streams.insert(id, stream);
                    let usual = found.ended.then(|| unary::usual(&head, &found.body, self.max_message_bytes)).flatten();
                    let (head, body) = (Box::new(head), found.body);
                    self.events.push(match usual {
                        Some(timeout) => Event::Unary { id, head, body, timeout },
                        None => Event::Request { id, head, body, ended: found.ended },
                    });
                }
                Poll::Ready(Some(Err(error))) => self.close(error.to_string()),
                Poll::Ready(None) => self.close(String::new()),
            }
        }
    }

    fn note(&mut self, id: u32, found: Found) {
        if !found.body.is_empty() || found.ended {
            self.events.push(Event::Data { id, body: found.body, ended: found.ended });
        }
        if let Some(code) = found.reset {
            self.streams.remove(&id);
            self.events.push(Event::Reset { id, code });
        } else if found.writable {
            self.events.push(Event::Writable { id });
        }
    }

    fn close(&mut self, reason: String) {
        self.state = State::Closed(reason);
        self.pings = None;
        self.streams.clear();
    }

    /// None if the client has left.
    fn answer(&mut self, id: u32, message: &[u8]) -> Option<bool> {
        let stream = self.streams.get_mut(&id)?;
        let framed = unary::framed(message)?;
        let sent = stream.head(self.answer_head.clone(), false).and_then(|()| stream.data(framed));
        if let Ok(false) = sent {
            return Some(false);
        }
        let ended = sent.and_then(|_| stream.trailers(self.answer_end.clone()));
        self.streams.remove(&id);
        ended.ok().map(|()| true)
    }
}

fn to_python<'py>(py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyTuple>> {
    match event {
        Event::Request { id, head, body, ended } => {
            (REQUEST, id, Head(*head), joined(py, &body)?, ended).into_pyobject(py)
        }
        Event::Unary { id, head, body, timeout } => {
            let message = PyBytes::new(py, body.first().map_or(&[], |only| &only[unary::PREFIX..]));
            (UNARY, id, Head(*head), message, timeout).into_pyobject(py)
        }
        Event::Data { id, body, ended } => (DATA, id, joined(py, &body)?, ended).into_pyobject(py),
        Event::Reset { id, code } => (RESET, id, code).into_pyobject(py),
        Event::Writable { id } => (WRITABLE, id).into_pyobject(py),
        Event::Pong => (PONG, 0).into_pyobject(py),
    }
}

fn joined<'py>(py: Python<'py>, parts: &[Bytes]) -> PyResult<Bound<'py, PyBytes>> {
    if let [only] = parts {
        return Ok(PyBytes::new(py, only));
    }
    PyBytes::new_with(py, parts.iter().map(Bytes::len).sum(), |mut into| {
        for part in parts {
            into[..part.len()].copy_from_slice(part);
            into = &mut into[part.len()..];
        }
        Ok(())
    })
}
