use std::path::Path;
use std::sync::Arc;

use ondol_engine::{Engine, EngineConfig};
use ondol_memory::DeviceEnv;
use ondol_server::{DoorConfig, StateDir, UnixDoor};

pub(crate) fn open(dir: &Path, mib: &str) -> (Arc<Engine>, UnixDoor, StateDir) {
    let state = StateDir::lock(&dir.join("state")).unwrap();
    let uri = format!("shm:pool?size={mib}MiB").parse().unwrap();
    let mut config = EngineConfig::new([uri]);
    let mut env = DeviceEnv::default();
    env.shm_root = dir.to_owned();
    config.device_env = env;
    config.region_bytes = Some(2 << 20);
    config.share_limit = Some(u64::MAX);
    config.secret = Some(state.secret().unwrap());
    let engine = Engine::open(config).unwrap();
    let door = DoorConfig::new(state.socket_path());
    let door = UnixDoor::open(Arc::clone(&engine) as _, &state, door).unwrap();
    (engine, door, state)
}
