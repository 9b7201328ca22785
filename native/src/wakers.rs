//! Numbers of the streams that a poll of the connection has moved on.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

/// Streams to visit; each is noted once until it is visited.
#[derive(Clone, Default)]
pub struct Woken(Arc<Mutex<Vec<u32>>>);

impl Woken {
    pub fn take(&self) -> Vec<u32> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, id: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(id);
    }
}

/// Waker of one stream.
pub struct StreamWaker {
    id: u32,
    woken: Woken,
    is_noted: AtomicBool,
}

impl StreamWaker {
    pub fn new(id: u32, woken: &Woken) -> Arc<Self> {
        Arc::new(Self { id, woken: woken.clone(), is_noted: AtomicBool::new(false) })
    }

    /// Note the stream again from now on.
    pub fn rearm(&self) {
        self.is_noted.store(false, Ordering::Relaxed);
    }
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_noted.swap(true, Ordering::Relaxed) {
            self.woken.note(self.id);
        }
    }
}
