//! The commands that talk to a running server.

pub(crate) mod get;
mod key;
pub(crate) mod list;
pub(crate) mod put;
pub(crate) mod remove;
pub(crate) mod stat;

use std::path::PathBuf;
use std::sync::Arc;

use ondol_handler::{
    ControlError, ControlPlane, Handler, HandlerConfig, HandlerError, Plugins, SOCKET_NAME,
    SocketOptions, SocketPlane,
};
use ondol_server::StateDir;

use crate::serve::Layers;

/// Which server to talk to.
#[derive(Debug, clap::Args)]
pub(crate) struct ServerArgs {
    /// Unix socket of the server [env: ONDOL_SOCKET] [default: ondol.sock in the state directory]
    ///
    /// The state directory is ONDOL_STATE_DIR, else $XDG_RUNTIME_DIR/ondol, else /run/ondol for root and
    /// /tmp/ondol-UID for others, as for `ondol serve`.
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
}

/// A handler, and what the server said when it came.
#[derive(Debug)]
struct Client {
    handler: Handler,
    socket: PathBuf,
    id: u64,
    longest: u64,
}

impl ServerArgs {
    fn socket(&self) -> anyhow::Result<PathBuf> {
        let layers = Layers::default()
            .with_environment()?
            .with_flag("socket", &self.socket);
        if let Some(socket) = layers.parse("socket", crate::serve::read_path)? {
            return Ok(socket);
        }
        let state_dir = layers.parse("state_dir", crate::serve::read_path)?;
        Ok(state_dir
            .unwrap_or_else(StateDir::default_path)
            .join(SOCKET_NAME))
    }

    /// Connects. Plugins run only in the commands that move bytes, which is what plugins are for.
    fn connect(&self, plugins: Plugins) -> anyhow::Result<Client> {
        let socket = self.socket()?;
        let plane =
            SocketPlane::connect(&socket, SocketOptions::default()).map_err(explain_absence)?;
        let info = plane.client();
        let mut config = HandlerConfig::default();
        config.plugins = plugins;
        // Stored with one and compared with it: a command is in no hurry.
        config.checksum = true;
        let handler = Handler::embedded(move || Ok(Arc::clone(&plane)), config)?;
        Ok(Client {
            handler,
            socket,
            id: info.id.0,
            longest: info.max_page_bytes,
        })
    }
}

fn explain_absence(error: ControlError) -> anyhow::Error {
    match error {
        // The reason says to start one where that would help.
        ControlError::Disconnected { reason, .. } => {
            anyhow::anyhow!("no server answers: {reason} (--socket names another one's socket)")
        }
        error => HandlerError::from(error).into(),
    }
}
