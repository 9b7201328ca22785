//! The two buffers that stand for a socket.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use crate::authority::Authority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of output after which the connection waits until they are taken.
pub const OUTPUT_LIMIT: usize = 256 * 1024;

#[derive(Default)]
pub struct Buffers {
    input: Vec<u8>,
    /// Of a connection through a unix socket.
    authority: Option<Authority>,
    /// Bytes of the input that were read.
    read: usize,
    pub output: Vec<u8>,
}

impl Buffers {
    pub fn feed(&mut self, data: &[u8]) {
        if self.read == self.input.len() {
            self.input.clear();
            self.read = 0;
        }
        match &mut self.authority {
            Some(authority) => authority.filter(data, &mut self.input),
            None => self.input.extend_from_slice(data),
        }
    }

    /// Whether input waits that the connection could not take yet.
    pub fn has_input(&self) -> bool {
        self.read < self.input.len()
    }
}

/// One end is the connection's socket, the other one the session's buffers.
#[derive(Clone)]
pub struct Pipe(Arc<Mutex<Buffers>>);

impl Pipe {
    pub fn new(is_unix: bool) -> Self {
        let authority = is_unix.then(Authority::default);
        Self(Arc::new(Mutex::new(Buffers { authority, ..Buffers::default() })))
    }

    pub fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Pipe {
    /// Nothing is woken by more input: the session polls after each.
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut buffers = self.buffers();
        if !buffers.has_input() {
            return Poll::Pending;
        }
        let start = buffers.read;
        let end = buffers.input.len().min(start + into.remaining());
        into.put_slice(&buffers.input[start..end]);
        buffers.read = end;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let mut buffers = self.buffers();
        if buffers.output.len() >= OUTPUT_LIMIT {
            return Poll::Pending;
        }
        buffers.output.extend_from_slice(data);
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
