//! HTTP/2 server sessions for an event loop: bytes in, events and bytes out. No thread, no runtime, no socket.
//!
//! The `h2` crate does the protocol. It is written for tasks and sockets; here its connection reads and writes two
//! buffers in memory (`pipe`), and is polled once for each read of the event loop (`session`). What a poll would wake
//! in a task is noted in a list of stream numbers instead (`wakers`). `unary` knows gRPC, as far as its usual calls go.

mod authority;
mod fields;
mod pipe;
mod session;
mod stream;
mod unary;
mod wakers;

/// The module `dexorder_http2`; `dexorder_http2.pyi` describes it.
#[pyo3::pymodule]
mod dexorder_http2 {
    #[pymodule_export]
    use crate::fields::{Fields, Head};
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    const REQUEST: u8 = crate::session::REQUEST;
    #[pymodule_export]
    const DATA: u8 = crate::session::DATA;
    #[pymodule_export]
    const RESET: u8 = crate::session::RESET;
    #[pymodule_export]
    const WRITABLE: u8 = crate::session::WRITABLE;
    #[pymodule_export]
    const PONG: u8 = crate::session::PONG;
    #[pymodule_export]
    const UNARY: u8 = crate::session::UNARY;
    #[pymodule_export]
    const OUTPUT_LIMIT: usize = crate::pipe::OUTPUT_LIMIT;
    #[pymodule_export]
    const SEND_BUFFER: usize = crate::stream::SEND_BUFFER;
}
