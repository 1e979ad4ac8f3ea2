use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ondol_handler::{
    Handler, HandlerConfig, Object, PageMut, PageSizes, SocketOptions, SocketPlane, Stored,
};
use ondol_tests::{Random, check, fill, key};

type Answer = Result<String, String>;

struct Client {
    handler: Arc<Handler>,
    pages: HashMap<String, PageMut>,
    objects: HashMap<String, Object>,
}

pub(crate) fn connect(socket: &Path, options: &[&str]) -> Handler {
    let mut config = HandlerConfig::default();
    let mut sockets = SocketOptions::default();
    sockets.timeout = Duration::from_secs(30);
    config.page_sizes = PageSizes::Fixed(vec![65_536]);
    config.stock_bytes = 1;
    for option in options {
        let (name, value) = option.split_once('=').expect("name=value");
        let value: u64 = value.parse().expect("a number");
        match name {
            "page" => config.page_sizes = PageSizes::Fixed(vec![value]),
            "stock" => config.stock_bytes = value,
            "idle" => sockets.idle_connections = value as usize,
            "wait" => config.l2_wait = Some(Duration::from_millis(value)),
            "timeout" => sockets.timeout = Duration::from_millis(value),
            _ => panic!("unknown option {name}"),
        }
    }
    let socket = socket.to_owned();
    Handler::embedded(
        move || SocketPlane::connect(&socket, sockets.clone()),
        config,
    )
    .expect("a connected handler")
}

pub(crate) fn run(socket: &Path, options: &[&str]) {
    let mut client = Client {
        handler: Arc::new(connect(socket, options)),
        pages: HashMap::new(),
        objects: HashMap::new(),
    };
    println!("ready");
    for line in io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match client.obey(&words) {
            Ok(answer) => println!("ok {answer}"),
            Err(error) => println!("err {}", error.replace('\n', " ")),
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

fn said<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

impl Client {
    fn obey(&mut self, words: &[&str]) -> Answer {
        let handler = &self.handler;
        let yes = |answer: bool| answer.to_string();
        let hits = |objects: &[Option<Object>]| -> String {
            let hit = |object: &Option<Object>| if object.is_some() { '1' } else { '0' };
            objects.iter().map(hit).collect()
        };
        Ok(match *words {
            ["alloc", name, len] => {
                let page = said(handler.alloc(number(len)? as usize))?;
                self.pages.insert(name.to_owned(), page);
                String::new()
            }
            ["fill", name, text, writer] => {
                fill(self.page(name)?, text, number(writer)?);
                String::new()
            }
            ["half", name, text, writer] => {
                let page = self.page(name)?;
                let mut whole = vec![0; page.len()];
                fill(&mut whole, text, number(writer)?);
                let half = page.len() / 2;
                page[..half].copy_from_slice(&whole[..half]);
                String::new()
            }
            ["store", text, name] => {
                let page = self.pages.remove(name).ok_or("no such page")?;
                stored(said(handler.store(&key(text), page))?)
            }
            ["put", text, len, writer] => {
                let mut page = said(handler.alloc(number(len)? as usize))?;
                fill(&mut page, text, number(writer)?);
                stored(said(handler.store(&key(text), page))?)
            }
            ["get", text, name] => match said(handler.retrieve(&key(text)))? {
                Some(object) => {
                    self.objects.insert(name.to_owned(), object);
                    "hit".to_owned()
                }
                None => "miss".to_owned(),
            },
            ["clone", name, other] => {
                let object = self.objects.get(name).ok_or("no such object")?.clone();
                self.objects.insert(other.to_owned(), object);
                String::new()
            }
            ["check", name, text] => {
                let object = self.objects.get(name).ok_or("no such object")?;
                check(object, text)?.to_string()
            }
            ["drop", name] => {
                let known = self.pages.remove(name).is_some() | self.objects.remove(name).is_some();
                yes(known)
            }
            ["exists", text] => yes(said(handler.exists(&key(text)))?),
            ["pin", text] => yes(said(handler.pin(&key(text)))?),
            ["unpin", text] => yes(said(handler.unpin(&key(text)))?),
            ["delete", text] => format!("{:?}", said(handler.delete(&key(text)))?),
            ["batch", ref texts @ ..] => {
                let keys: Vec<_> = texts.iter().map(|text| key(text)).collect();
                hits(&said(handler.batch_retrieve(&keys))?)
            }
            ["prefetch", ref texts @ ..] => {
                let keys: Vec<_> = texts.iter().map(|text| key(text)).collect();
                let found = said(handler.prefetch(&keys))?;
                format!("{} of {}", found.found, found.requested)
            }
            ["stage", ref texts @ ..] => {
                let keys: Vec<_> = texts.iter().map(|text| key(text)).collect();
                yes(handler.stage(&keys).ready())
            }
            ["plugins"] => {
                let stats = said(handler.stats())?;
                serde_json::Value::Object(stats.plugins).to_string()
            }
            ["leases"] => handler.counts().leases.to_string(),
            ["mapped"] => handler.counts().mapped_regions.to_string(),
            ["health"] => format!("{:?}", handler.health()),
            ["close"] => {
                handler.close();
                String::new()
            }
            ["reconnect"] => {
                said(handler.reconnect())?;
                String::new()
            }
            ["storm", seed, threads] => {
                for thread in 0..number(threads)? {
                    let handler = Arc::clone(handler);
                    let random = Random::new(number(seed)? + thread);
                    thread::spawn(move || storm(&handler, random));
                }
                String::new()
            }
            _ => return Err(format!("no such order: {words:?}")),
        })
    }

    fn page(&mut self, name: &str) -> Result<&mut PageMut, String> {
        self.pages
            .get_mut(name)
            .ok_or_else(|| "no such page".to_owned())
    }
}

fn stored(outcome: Stored) -> String {
    match outcome {
        Stored::New => "new",
        Stored::AlreadyPresent => "present",
    }
    .to_owned()
}

/// Does everything at random until the process is killed; says so if bytes are not what they must be.
fn storm(handler: &Handler, mut random: Random) {
    let mut held: Vec<(String, Object)> = Vec::new();
    let mut pages: Vec<PageMut> = Vec::new();
    let writer = u64::from(std::process::id());
    loop {
        let text = format!("s{}", random.below(40));
        let name = key(&text);
        // That the pool is full of what others hold is part of the weather.
        match random.below(10) {
            0..=3 => {
                if let Ok(mut page) = handler.alloc(random.below(65_537) as usize) {
                    fill(&mut page, &text, writer);
                    let _ = handler.store(&name, page);
                }
            }
            4 => pages.extend(handler.alloc(65_536)),
            5..=6 => {
                if let Ok(Some(object)) = handler.retrieve(&name) {
                    held.push((text, object));
                }
            }
            7 => drop(handler.pin(&name)),
            8 => drop(handler.unpin(&name)),
            _ => drop(handler.delete(&name)),
        }
        for page in &mut pages {
            let half = page.len() / 2;
            page[..half].fill(0xee);
        }
        if held.len() > 6 {
            let (text, object) = held.swap_remove(random.below(6) as usize);
            if let Err(error) = check(&object, &text) {
                println!("err {error}");
            }
        }
        if pages.len() > 3 {
            pages.clear();
        }
    }
}
