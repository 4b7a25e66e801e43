//! Where a transceiver's backend links end: each on a thread of its own, so that a backend is a
//! loop that reads and answers. The modules below are the two dialects, as little of them as a
//! measurement needs, and the backend that sends everything back.

pub(super) mod echo;
pub(super) mod media_v1;
pub(super) mod realtime;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use serde_json::Value;
use tungstenite::{Message, WebSocket};

/// Links that are served at once; more are closed as they come.
const LINKS_MAX: usize = 4_096;

/// A link as the backend has it.
pub(super) type Link = WebSocket<TcpStream>;

/// A listening backend; it stops listening when dropped.
#[derive(Debug)]
pub(super) struct Links {
    address: SocketAddr,
    over: Arc<AtomicBool>,
}

impl Links {
    /// Has `serve` carry each link until it ends.
    pub(super) fn start(
        listen: SocketAddr,
        serve: impl Fn(Link) -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(listen)
            .with_context(|| format!("the backend cannot listen at {listen}"))?;
        let address = listener.local_addr()?;
        let (over, serve) = (Arc::<AtomicBool>::default(), Arc::new(serve));
        let ended = Arc::clone(&over);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                if Arc::strong_count(&serve) > LINKS_MAX {
                    continue;
                }
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || {
                    // A link that breaks leaves its call without a figure, which is counted there.
                    let _ = accept(stream).and_then(|link| serve(link));
                });
            }
        });
        Ok(Self { address, over })
    }

    /// Where a transceiver finds it.
    pub(super) fn url(&self) -> String {
        format!("ws://{}/", self.address)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the listener, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(stream: TcpStream) -> anyhow::Result<Link> {
    stream.set_nodelay(true)?;
    Ok(tungstenite::accept(stream)?)
}

/// Says something in JSON.
pub(super) fn say(link: &mut Link, message: &Value) -> tungstenite::Result<()> {
    link.send(Message::text(message.to_string()))
}
