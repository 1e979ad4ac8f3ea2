//! `ondol put`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use ondol_handler::{PageMut, Plugins, Stored};
use ondol_memory::format_size;

use super::key::{self, KeyArg, shown};
use super::{Client, ServerArgs};
use crate::output::stdout;

/// Store a file, or standard input, as an object
///
/// Objects are immutable: if the key is there already, the first object stays, the command says so and succeeds.
#[derive(Debug, clap::Args)]
#[command(after_help = key::HELP)]
pub(crate) struct Args {
    /// The object's key
    key: KeyArg,
    /// File to read; `-` is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let KeyArg(key) = &args.key;
    let client = args.server.connect(Plugins::Linked)?;
    let page = if args.file.as_os_str() == "-" {
        read_stream(&client, &mut io::stdin().lock(), "standard input")?
    } else {
        read_file(&client, &args.file)?
    };
    let size = format_size(page.len() as u64);
    let stored = client.handler.store(key, page)?;
    let (key, mut out) = (shown(key), stdout());
    match stored {
        Stored::New => writeln!(out, "stored {key} ({size})")?,
        Stored::AlreadyPresent => {
            writeln!(out, "{key} is already present; the first object stays")?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn read_file(client: &Client, path: &PathBuf) -> anyhow::Result<PageMut> {
    let name = path.display().to_string();
    let cannot = || format!("cannot read {name}");
    let mut file = File::open(path).with_context(cannot)?;
    let stat = file.metadata().with_context(cannot)?;
    // Pipes have no length, and files of /proc claim to have none.
    if !stat.is_file() || stat.len() == 0 {
        return read_stream(client, &mut file, &name);
    }
    let mut page = alloc(client, stat.len(), &name)?;
    file.read_exact(&mut page).with_context(cannot)?;
    if file.read(&mut [0]).with_context(cannot)? > 0 {
        bail!("{name} grew while it was read; nothing was stored");
    }
    Ok(page)
}

/// Reads a stream of unknown length, but not more of it than a page could hold.
fn read_stream(client: &Client, stream: &mut impl Read, name: &str) -> anyhow::Result<PageMut> {
    let mut bytes = Vec::new();
    stream
        .take(client.longest.saturating_add(1))
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    let mut page = alloc(client, bytes.len() as u64, name)?;
    page.write_from(&bytes);
    Ok(page)
}

fn alloc(client: &Client, len: u64, name: &str) -> anyhow::Result<PageMut> {
    ensure!(
        len <= client.longest,
        "{name} is longer than {}, which is as long as an object can be in this server's pool",
        format_size(client.longest)
    );
    let len = usize::try_from(len).context("too long for this machine")?;
    Ok(client.handler.alloc(len)?)
}
