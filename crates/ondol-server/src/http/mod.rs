//! The door for those who watch: `/healthz` and `/metrics` over HTTP, on loopback only.
//!
//! One thread with a runtime of its own serves it, so that whatever happens here holds up no client. A connection is
//! good for one request and a few seconds; when there are too many, the oldest one goes, so that nobody who is slow or
//! silent can keep others out.

mod exposition;
mod figures;
mod watched;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::runtime::{self, Runtime};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use figures::HttpCounters;

pub use exposition::{Sample, Value};
pub use watched::Watched;

/// What the door tells about.
pub trait Observed: Send + Sync + fmt::Debug {
    /// Whether the server does its work. Answers at once.
    fn health(&self) -> Health;

    /// Every figure. May take a moment.
    fn samples(&self) -> Vec<Sample>;
}

/// Whether a server does its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Good,
    /// It does, and is still busy with what is said here in a few words.
    Busy(String),
    /// It does, but for a part that can be done without for a while; which, in one line.
    Degraded(String),
    /// Something does not work; why, in one line.
    Bad(String),
}

/// Why there is no door.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address could be reached from other hosts, and the door asks nobody who they are.
    #[error(
        "the address of health and figures is {0}; expected one of loopback, such as 127.0.0.1:9855: whoever shall see them from another host needs a proxy that says who may"
    )]
    NotLoopback(SocketAddr),
    /// Somebody listens there.
    #[error("the address {0} is in use; choose another one for health and figures, or `off`")]
    InUse(SocketAddr),
    /// The system refused something.
    #[error("cannot {action} for health and figures at {address}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
}

/// An address that is taken and not served yet.
#[derive(Debug)]
pub struct HttpSocket {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpSocket {
    /// Takes an address of loopback; port 0 is any free one.
    ///
    /// # Errors
    /// [`HttpError`].
    pub fn bind(address: SocketAddr) -> Result<Self, HttpError> {
        if !address.ip().is_loopback() {
            return Err(HttpError::NotLoopback(address));
        }
        let failed = |action| {
            move |source| HttpError::Io {
                action,
                address,
                source,
            }
        };
        let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => HttpError::InUse(address),
            _ => failed("listen")(source),
        })?;
        listener
            .set_nonblocking(true)
            .map_err(failed("prepare the socket"))?;
        let address = listener
            .local_addr()
            .map_err(failed("look at the socket"))?;
        Ok(Self { listener, address })
    }

    /// The address, with the port that it really has.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What a watcher may take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpConfig {
    /// Connections at once; another one ends the oldest.
    pub max_connections: usize,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Duration,
    /// How long a connection may last in all.
    pub timeout: Duration,
    /// How long [`HttpDoor::stop`] waits for answers that are being sent.
    pub stop_timeout: Duration,
}

impl Default for HttpConfig {
    /// 32 connections, 5 s for the head of a request, 15 s in all.
    fn default() -> Self {
        Self {
            max_connections: 32,
            header_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(15),
            stop_timeout: Duration::from_secs(1),
        }
    }
}

/// The least that hyper lets a head of a request take.
const HEAD_BYTES: usize = 8192;
const HEADERS: usize = 64;
/// Figures that are gathered at once; gathering waits for the writer of the directory.
const GATHERERS: usize = 2;

/// An open door: serves until [`stop`](Self::stop), or until it is dropped.
#[derive(Debug)]
pub struct HttpDoor {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

#[derive(Debug)]
struct Shared {
    observed: Arc<dyn Observed>,
    config: HttpConfig,
    counters: HttpCounters,
    gatherers: Arc<Semaphore>,
    stopping: AtomicBool,
}

impl HttpDoor {
    /// Serves what can be told of `observed`.
    ///
    /// # Errors
    /// [`HttpError::Io`] if the system has no descriptor or thread left.
    pub fn open(
        socket: HttpSocket,
        observed: Arc<dyn Observed>,
        config: HttpConfig,
    ) -> Result<Self, HttpError> {
        let HttpSocket { listener, address } = socket;
        let failed = |action| {
            move |source| HttpError::Io {
                action,
                address,
                source,
            }
        };
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(GATHERERS)
            .thread_name("ondol-figures")
            .build()
            .map_err(failed("start a runtime"))?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(failed("use the socket"))?
        };
        let shared = Arc::new(Shared {
            observed,
            config,
            counters: HttpCounters::new(),
            gatherers: Arc::new(Semaphore::new(GATHERERS)),
            stopping: AtomicBool::new(false),
        });
        let (close, closing) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("ondol-http".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || run(runtime, listener, &shared, closing)
            })
            .map_err(failed("start a thread"))?;
        Ok(Self {
            address,
            shared,
            thread: Mutex::new(Some((close, thread))),
        })
    }

    /// Where it is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says from now on that the server is stopping.
    pub fn announce_stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
    }

    /// Accepts no more, lets the answers that are being sent end for a bounded time, and closes. A second call does
    /// nothing.
    pub fn stop(&self) {
        self.announce_stop();
        let Some((close, thread)) = self.thread.lock().take() else {
            return;
        };
        // Fails only if the thread has ended already.
        let _ = close.send(());
        if thread.join().is_err() {
            tracing::error!("the thread of health and figures had panicked");
        }
    }
}

impl Drop for HttpDoor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(
    runtime: Runtime,
    listener: tokio::net::TcpListener,
    shared: &Arc<Shared>,
    closing: oneshot::Receiver<()>,
) {
    runtime.block_on(serve(listener, shared, closing));
    // Not for ever: whoever gathers figures may wait for a lock that is not given back.
    runtime.shutdown_timeout(shared.config.stop_timeout);
}

async fn serve(
    listener: tokio::net::TcpListener,
    shared: &Arc<Shared>,
    mut closing: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    let mut by_age: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = &mut closing => break,
            accepted = listener.accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        by_age.retain(|connection| !connection.is_finished());
        match accepted {
            Ok((stream, _)) => {
                if by_age.len() >= shared.config.max_connections
                    && let Some(oldest) = by_age.pop_front()
                {
                    oldest.abort();
                    shared.counters.cut.increment();
                }
                let shared = Arc::clone(shared);
                by_age.push_back(connections.spawn(converse(stream, shared)));
            }
            Err(error) => {
                // Out of descriptors or memory, or the other side has gone already.
                tracing::debug!(%error, "cannot accept a connection for health and figures");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    // Those that are left end with the runtime.
    let _ = tokio::time::timeout(shared.config.stop_timeout, all).await;
}

async fn converse(stream: tokio::net::TcpStream, shared: Arc<Shared>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.config.header_timeout)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| answer(request, Arc::clone(&shared))),
        );
    match tokio::time::timeout(shared.config.timeout, connection).await {
        Ok(Ok(())) => {}
        // Whoever does not speak HTTP, or not in time, is told by hyper.
        Ok(Err(error)) => tracing::debug!(%error, "a connection for health and figures failed"),
        Err(_) => {}
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    shared.counters.requests.increment();
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/healthz") => health(&shared),
        (&Method::GET | &Method::HEAD, "/metrics") => figures(shared).await,
        (_, "/healthz" | "/metrics") => {
            let text = "only GET and HEAD are answered here\n";
            let mut answer = text_answer(StatusCode::METHOD_NOT_ALLOWED, text);
            let methods = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, methods);
            answer
        }
        _ => text_answer(StatusCode::NOT_FOUND, "there are /healthz and /metrics\n"),
    })
}

fn health(shared: &Shared) -> Response<Full<Bytes>> {
    if shared.stopping.load(Ordering::Relaxed) {
        return text_answer(StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
    }
    match shared.observed.health() {
        Health::Good => text_answer(StatusCode::OK, "ok\n"),
        Health::Busy(with) => text_answer(StatusCode::OK, format!("ok, {}\n", one_line(&with))),
        Health::Degraded(why) => {
            text_answer(StatusCode::OK, format!("degraded: {}\n", one_line(&why)))
        }
        Health::Bad(why) => text_answer(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{}\n", one_line(&why)),
        ),
    }
}

async fn figures(shared: Arc<Shared>) -> Response<Full<Bytes>> {
    // The permit goes with the work, so that requests which were given up cannot pile up work behind it.
    let Ok(permit) = Arc::clone(&shared.gatherers).acquire_owned().await else {
        return text_answer(StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
    };
    let gathered = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut samples = shared.observed.samples();
        let own = shared.counters.iter();
        samples.extend(own.map(|counter| Sample::new(counter.metric(), counter.get())));
        exposition::render(samples)
    });
    match gathered.await {
        Ok(page) => {
            let mut answer = text_answer(StatusCode::OK, page);
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            answer
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            answer
        }
        Err(error) => {
            tracing::error!(%error, "the figures could not be gathered");
            let text = "the figures could not be gathered\n";
            text_answer(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

fn text_answer(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    let value = HeaderValue::from_static;
    headers.insert(CONTENT_TYPE, value("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, value("no-store"));
    answer
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
