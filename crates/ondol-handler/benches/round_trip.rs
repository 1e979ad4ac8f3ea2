//! How long a question to a server takes that has next to nothing to do for it, with one and more clients that ask all
//! the time, each a process of its own; and what connections cost that nobody uses.
//!
//! `cargo bench -p ondol-handler --bench round_trip` prints it for pings and for stores of single small objects.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ondol_engine::{Engine, EngineConfig};
use ondol_handler::{
    ControlPlane, Handler, HandlerConfig, Key, Plugins, SocketOptions, SocketPlane,
};
use ondol_server::{DoorConfig, House, StateDir, UnixDoor};
use rustix::time::{ClockId, clock_gettime};

const SECONDS: f64 = 1.0;
/// What part of that time clients ask before it counts.
const WARM: f64 = 0.2;
/// What a client that thinks or rests does before each ping.
const PAUSE: Duration = Duration::from_micros(300);
const IDLE: usize = 50;
const ROUNDS: usize = 3;

/// CPU time of this process in microseconds.
fn cpu_us() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// CPU time of a process of which no thread ends meanwhile, in milliseconds.
fn cpu_ms(pid: u32) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let ns: f64 = text
            .split(' ')
            .next()
            .context("an empty schedstat")?
            .parse()?;
        sum += ns / 1e6;
    }
    Ok(sum)
}

fn serve(dir: &Path) -> anyhow::Result<()> {
    let state = StateDir::lock(&dir.join("state"))?;
    let house: Arc<dyn House> = Engine::open(EngineConfig::new(["memfd:?size=64MiB".parse()?]))?;
    let door = UnixDoor::open(house, &state, DoorConfig::new(dir.join("socket")))?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("{}", cpu_us());
    drop(door);
    Ok(())
}

/// Asks for some time; prints its CPU time, and how long each question took, in nanoseconds.
fn ask(socket: &Path, what: &str) -> anyhow::Result<()> {
    let mut config = HandlerConfig::default();
    config.plugins = Plugins::None;
    let handler = Handler::connect(socket, config)?;
    let plane = SocketPlane::connect(socket, SocketOptions::default())?;
    let pid = u64::from(std::process::id());
    let mut number = 0;
    let mut question = || -> anyhow::Result<Duration> {
        number += 1;
        let last = Instant::now();
        match what {
            "think" => while last.elapsed() < PAUSE {},
            "rest" => std::thread::sleep(PAUSE),
            _ => {}
        }
        let key = Key::integer(pid << 40 | number);
        let begun = Instant::now();
        match what {
            "ping" | "think" | "rest" => plane.ping()?,
            "store" => {
                let page = handler.alloc(4096)?;
                handler.store(&key, page)?;
            }
            what => bail!("{what}: expected ping, think, rest or store"),
        }
        Ok(begun.elapsed())
    };
    let warm = Instant::now();
    while warm.elapsed().as_secs_f64() < SECONDS * WARM {
        question()?;
    }
    let begun = Instant::now();
    let cpu = cpu_us();
    let mut took = Vec::with_capacity(1 << 20);
    while begun.elapsed().as_secs_f64() < SECONDS {
        took.push(question()?.as_nanos());
    }
    let text: Vec<_> = took.iter().map(u128::to_string).collect();
    println!("{} {}", cpu_us() - cpu, text.join(" "));
    Ok(())
}

/// Connections that nobody uses, each a client, after a few questions each.
fn idle(socket: &Path) -> anyhow::Result<()> {
    let connect = |_| SocketPlane::connect(socket, SocketOptions::default());
    let planes = (0..IDLE).map(connect).collect::<Result<Vec<_>, _>>()?;
    for plane in planes.iter().cycle().take(IDLE * 10) {
        plane.ping()?;
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn start(arguments: &[&str]) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    let command = command.args(arguments).stdin(Stdio::piped());
    Ok(command.stdout(Stdio::piped()).spawn()?)
}

fn started(arguments: &[&str]) -> anyhow::Result<Child> {
    let mut child = start(arguments)?;
    let mut line = String::new();
    let stdout = child.stdout.as_mut().context("no output")?;
    BufReader::new(stdout).read_line(&mut line)?;
    ensure!(line == "ready\n", "{arguments:?} said {line:?}");
    Ok(child)
}

/// Ends a process; what it says at the end.
fn end(mut child: Child) -> anyhow::Result<String> {
    drop(child.stdin.take());
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "a process failed");
    Ok(String::from_utf8(output.stdout)?)
}

fn measure(what: &str, clients: usize) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().to_str().context("an odd directory")?;
    let socket = format!("{path}/socket");
    let server = started(&["serve", path])?;
    let asking = (0..clients).map(|_| start(&["ask", &socket, what]));
    let mut took: Vec<u64> = Vec::new();
    let mut client_cpu = 0.0;
    for child in asking.collect::<anyhow::Result<Vec<_>>>()? {
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "a client failed");
        let text = String::from_utf8(output.stdout)?;
        let mut words = text.split_whitespace();
        client_cpu += words.next().context("no CPU time")?.parse::<f64>()?;
        for nanoseconds in words {
            took.push(nanoseconds.parse()?);
        }
    }
    let server_cpu: f64 = end(server)?.trim().parse()?;
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize] as f64 / 1e3;
    let count = took.len() as f64;
    println!(
        "{what:>5}, {clients} clients: p50 {:>6.1}  p99 {:>6.1}  p99.9 {:>7.1} us, {:>7.0}/s; CPU of clients {:>5.1}, of the server {:>5.1} us each",
        at(0.5),
        at(0.99),
        at(0.999),
        count / SECONDS,
        client_cpu / count,
        server_cpu / (count * (1.0 + WARM)),
    );
    Ok(())
}

fn measure_idle() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().to_str().context("an odd directory")?;
    let server = started(&["serve", path])?;
    let clients = started(&["idle", &format!("{path}/socket")])?;
    std::thread::sleep(Duration::from_millis(200));
    let cpu = || Ok::<_, anyhow::Error>((cpu_ms(server.id())?, cpu_ms(clients.id())?));
    let before = cpu()?;
    std::thread::sleep(Duration::from_secs(2));
    let after = cpu()?;
    println!(
        "{IDLE} idle connections: server {:.2}, clients {:.2} ms of CPU a second",
        (after.0 - before.0) / 2.0,
        (after.1 - before.1) / 2.0
    );
    end(clients)?;
    end(server)?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["serve", dir] => return serve(Path::new(dir)),
        ["ask", socket, what] => return ask(Path::new(socket), what),
        ["idle", socket] => return idle(Path::new(socket)),
        _ => {}
    }
    for _ in 0..ROUNDS {
        for what in ["ping", "think", "rest", "store"] {
            for clients in [1, 2, 4] {
                measure(what, clients)?;
            }
        }
    }
    measure_idle()
}
