//! What a configuration opens, and what it is told if it opens nothing.

mod l2;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use l2::{Answer, keys, options, soon};
use ondol_host::Registry;
use ondol_host::l2::{AdapterSpec, Backend, L2Registry, OpenError};
use ondol_plugin::Package;
use ondol_plugin::l2::{
    AdapterConfig, Completion, ConfigClass, EventNotifier, FutureId, L1Mapping, L2Adapter,
    L2AdapterFactory, NativeConnector, NativeConnectorFactory, ObjectRef, OpenContext, PageMut,
};
use ondol_testkit::l2::ManualAdapter;

const fn package(name: &'static str) -> Package {
    Package {
        name,
        version: "1.0.0",
    }
}

/// What the factories of this file were last opened with.
static OPENED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(text: String) {
    OPENED.lock().unwrap().push(text);
}

#[derive(Clone, serde::Deserialize)]
struct SizedConfig {
    size: u64,
}

#[derive(serde::Deserialize)]
struct NamedConfig {
    name: String,
}

fn open(config: AdapterConfig, context: &OpenContext<'_>) -> anyhow::Result<Box<dyn L2Adapter>> {
    let typed = match (config.typed::<SizedConfig>(), config.typed::<NamedConfig>()) {
        (Some(sized), _) => format!("sized {}", sized.size),
        (_, Some(named)) => format!("named {}", named.name),
        _ => format!("raw {}", serde_json::to_string(config.parameters())?),
    };
    note(format!("{} {typed}", context.name()));
    Ok(Box::new(ManualAdapter::new()?))
}

fn open_wrapper(
    config: AdapterConfig,
    context: &OpenContext<'_>,
) -> anyhow::Result<Box<dyn L2Adapter>> {
    let inner = config.parameters()["inner"].as_object();
    let inner = inner.ok_or_else(|| anyhow::anyhow!("`inner` is missing"))?;
    context.open_inner(inner)
}

/// Wraps itself without end.
fn open_endless(_: AdapterConfig, context: &OpenContext<'_>) -> anyhow::Result<Box<dyn L2Adapter>> {
    context.open_inner(serde_json::json!({"type":"endless"}).as_object().unwrap())
}

static ADAPTERS: [L2AdapterFactory; 7] = [
    L2AdapterFactory::new(
        "fs",
        "acme_fs::adapter",
        "FsAdapter",
        package("acme-fs"),
        open,
    )
    .aliases(&["fs_native"])
    .config::<SizedConfig>("SizedConfig")
    .verifies(),
    L2AdapterFactory::new("fs", "zeta_fs", "FsAdapter", package("zeta-fs"), |_, _| {
        anyhow::bail!("the wrong one")
    }),
    L2AdapterFactory::new("raw", "acme_raw", "RawAdapter", package("acme-raw"), open).more_configs(
        &[
            ConfigClass::new::<NamedConfig>("OtherConfig"),
            ConfigClass::new::<SizedConfig>("RawAdapterConfig"),
        ],
    ),
    L2AdapterFactory::new(
        "wrap",
        "acme_wrap",
        "Wrapper",
        package("acme-wrap"),
        open_wrapper,
    ),
    L2AdapterFactory::new(
        "endless",
        "acme_wrap",
        "Endless",
        package("acme-wrap"),
        open_endless,
    ),
    L2AdapterFactory::new(
        "panics",
        "acme_bad",
        "Panics",
        package("acme-bad"),
        |_, _| panic!("on opening"),
    ),
    L2AdapterFactory::new(
        "refuses",
        "acme_bad",
        "Refuses",
        package("acme-bad"),
        |_, _| anyhow::bail!("no such directory: /mnt/kv"),
    ),
];

/// A connector that answers at once, and holds nothing.
struct Empty {
    event: EventNotifier,
    done: Mutex<Vec<Completion>>,
    next: AtomicUsize,
}

impl Empty {
    fn answer(&self, per_key: Option<Vec<bool>>, pages: Vec<PageMut>) -> anyhow::Result<FutureId> {
        let future = self.next.fetch_add(1, Ordering::Relaxed) as u64 + 1;
        self.done.lock().unwrap().push(Completion {
            future,
            ok: true,
            per_key,
            pages,
            ..Completion::default()
        });
        self.event.notify();
        Ok(FutureId(future))
    }
}

impl NativeConnector for Empty {
    fn event_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.event)
    }
    fn submit_batch_get(&self, keys: &[String], pages: Vec<PageMut>) -> anyhow::Result<FutureId> {
        self.answer(Some(vec![false; keys.len()]), pages)
    }
    fn submit_batch_set(&self, _: &[String], _: Vec<ObjectRef>) -> anyhow::Result<FutureId> {
        self.answer(None, Vec::new())
    }
    fn submit_batch_exists(&self, keys: &[String]) -> anyhow::Result<FutureId> {
        self.answer(Some(vec![false; keys.len()]), Vec::new())
    }
    fn drain_completions(&self) -> Vec<Completion> {
        self.event.consume();
        std::mem::take(&mut self.done.lock().unwrap())
    }
    fn close(&self) {}
}

static CONNECTORS: [NativeConnectorFactory; 1] = [NativeConnectorFactory::new(
    "acme_connector::inner",
    "Empty",
    package("acme-connector"),
    |config, _| {
        note(format!(
            "connector {}",
            config.typed::<SizedConfig>().unwrap().size
        ));
        Ok(Box::new(Empty {
            event: EventNotifier::new()?,
            done: Mutex::default(),
            next: AtomicUsize::new(0),
        }))
    },
)
.config::<SizedConfig>("SizedConfig")];

fn registry() -> L2Registry {
    L2Registry::of(&ADAPTERS, &CONNECTORS)
}

fn try_open(json: &str) -> Result<Arc<Backend>, OpenError> {
    let spec: AdapterSpec = json.parse().unwrap();
    registry().open(&spec, 3, &[], options())
}

/// Opens it, and says what the factory was given.
#[track_caller]
fn opened(json: &str) -> (Arc<Backend>, String) {
    // One at a time, as they share the note.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(|poison| poison.into_inner());
    OPENED.lock().unwrap().clear();
    let backend = try_open(json).unwrap();
    (backend, OPENED.lock().unwrap().join("; "))
}

#[track_caller]
fn refused(json: &str) -> String {
    let text = try_open(json).unwrap_err().to_string();
    // Every message says what there is.
    for part in ["fs (also fs_native)", "raw", "acme_connector::inner::Empty"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    text
}

#[test]
fn a_type_is_found_by_name_or_alias_and_the_first_package_wins() {
    for name in ["fs", "fs_native"] {
        let json = format!(r#"{{"type":"{name}","size":7,"shared":true,"required":false}}"#);
        let (backend, given) = opened(&json);
        assert_eq!(given, format!("{name}#3 sized 7"));
        assert_eq!(backend.name(), format!("{name}#3"));
        assert!(backend.verifies());
        assert_eq!(backend.spec().parameters["size"], 7);
    }
    let registry = registry();
    let shadowed = registry
        .adapters()
        .iter()
        .filter(|row| registry.is_shadowed(row));
    let shadowed: Vec<_> = shadowed.map(|row| row.package().name).collect();
    assert_eq!(shadowed, ["zeta-fs"]);
}

#[test]
fn common_keys_are_the_hosts_and_do_not_reach_the_adapter() {
    let (_, given) = opened(
        r#"{"type":"plugin","module_path":"acme_raw","class_name":"RawAdapter",
            "adapter_params":{"size":5},"eviction":{"eviction_policy":"noop"}}"#,
    );
    assert_eq!(given, "plugin#3 sized 5");
    let (_, given) = opened(r#"{"type":"raw","x":[1],"serde":{"type":"zstd"}}"#);
    assert_eq!(given, r#"raw#3 raw {"x":[1]}"#);
}

#[test]
fn the_configuration_class_is_found_in_four_steps() {
    let class = |json: &str| opened(json).1;
    // Named by the configuration.
    let named = r#"{"type":"plugin","module_path":"acme_raw","class_name":"RawAdapter",
        "config_class_name":"OtherConfig","adapter_params":{"name":"n"}}"#;
    assert_eq!(class(named), "plugin#3 named n");
    // The class's name followed by Config; also when the named one is not there.
    let lost = r#"{"type":"plugin","module_path":"acme_raw","class_name":"RawAdapter",
        "config_class_name":"LostConfig","adapter_params":{"size":6}}"#;
    assert_eq!(class(lost), "plugin#3 sized 6");
    // The one that the factory names itself.
    let own = r#"{"type":"plugin","module_path":"acme_fs","class_name":"FsAdapter",
        "adapter_params":{"size":8}}"#;
    assert_eq!(class(own), "plugin#3 sized 8");
    // None.
    let raw = r#"{"type":"plugin","module_path":"acme_wrap","class_name":"Wrapper",
        "adapter_params":{"inner":{"type":"raw","y":1}}}"#;
    assert_eq!(class(raw), r#"plugin#3 raw {"y":1}"#);
}

#[test]
fn a_module_is_named_with_dots_or_colons_whole_or_by_a_module_above() {
    for module in [
        "acme_fs::adapter",
        "acme_fs.adapter",
        "acme_fs",
        "acme-fs",
        "acme-fs.adapter",
    ] {
        let json = format!(
            r#"{{"type":"plugin","module_path":"{module}","class_name":"FsAdapter","adapter_params":{{"size":1}}}}"#
        );
        assert_eq!(opened(&json).1, "plugin#3 sized 1", "{module}");
    }
    for module in ["acme", "acme_fs::adapter::deeper", "adapter", "acme_f"] {
        let json =
            format!(r#"{{"type":"plugin","module_path":"{module}","class_name":"FsAdapter"}}"#);
        let text = refused(&json);
        assert!(
            text.contains("which no adapter has; expected one of: "),
            "{text}"
        );
    }
}

#[test]
fn a_native_connector_is_bridged() {
    let (backend, given) = opened(
        r#"{"type":"native_plugin","module_path":"acme_connector","class_name":"Empty",
            "adapter_params":{"size":2},"max_capacity_gb":0.5}"#,
    );
    assert_eq!(given, "connector 2");
    let found = Answer::of(|done| backend.lookup(keys(2), Duration::from_secs(60), done));
    assert_eq!(found.wait().unwrap().found.to_string(), "00");
    soon(|| backend.usage().capacity_bytes == Some(1 << 29));
}

#[test]
fn what_cannot_be_opened_is_told_with_field_value_and_what_there_is() {
    for (json, said) in [
        (
            r#"{"type":"lost"}"#,
            "storage backend lost#3: `type` is \"lost\"; expected a type that is linked in",
        ),
        (
            r#"{"type":"s3"}"#,
            "`type` is \"s3\", a type of LMCache that this program does not have",
        ),
        (
            r#"{"type":"fs"}"#,
            "its parameters are no SizedConfig: missing field `size`",
        ),
        (
            r#"{"type":"plugin","class_name":"X"}"#,
            "`module_path` is missing; expected",
        ),
        (
            r#"{"type":"plugin","module_path":"a","class_name":7}"#,
            "`class_name` is 7; expected",
        ),
        (
            r#"{"type":"plugin","module_path":"acme_fs","class_name":"FsAdapter","adapter_params":[]}"#,
            "`adapter_params` is []; expected an object",
        ),
        (
            r#"{"type":"native_plugin","module_path":"acme_connector","class_name":"Lost"}"#,
            "which no native connector has; expected one of: acme_connector::inner::Empty",
        ),
        (
            r#"{"type":"native_plugin","module_path":"acme_connector","class_name":"Empty","max_capacity_gb":-1}"#,
            "`max_capacity_gb` is -1; expected a number of GiB",
        ),
        (
            r#"{"type":"native_plugin","module_path":"/nowhere/lib.so","class_name":"X"}"#,
            "/nowhere/lib.so cannot be loaded",
        ),
        (
            r#"{"type":"refuses"}"#,
            "it does not open: no such directory: /mnt/kv",
        ),
        (
            r#"{"type":"panics"}"#,
            "it does not open: panicked: on opening",
        ),
        (
            r#"{"type":"wrap","inner":{"type":"lost"}}"#,
            "it does not open: `type` is \"lost\"",
        ),
        (r#"{"type":"wrap","inner":{}}"#, "`type` is missing"),
        (
            r#"{"type":"endless"}"#,
            "more than 8 adapters wrap one another",
        ),
    ] {
        let text = refused(json);
        assert!(text.contains(said), "{said:?} in {text:?}");
    }
}

#[test]
fn adapters_see_how_the_pool_is_mapped() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    static ROW: L2AdapterFactory =
        L2AdapterFactory::new("maps", "acme", "Maps", package("acme"), |_, context| {
            SEEN.store(context.mappings()[0].length, Ordering::SeqCst);
            Ok(Box::new(ManualAdapter::new()?))
        });
    let file = std::fs::File::open("/dev/null").unwrap();
    let mapping = L1Mapping::new(4096, 8192, Arc::new(file.into()));
    let spec: AdapterSpec = r#"{"type":"maps"}"#.parse().unwrap();
    let registry = L2Registry::of([&ROW], []);
    registry.open(&spec, 0, &[mapping], options()).unwrap();
    assert_eq!(SEEN.load(Ordering::SeqCst), 8192);
}

#[test]
fn packages_of_backends_count_among_those_that_are_expected() {
    let plugins = Registry::of([]).with_backends(&registry());
    let all = [
        "acme-fs",
        "zeta-fs",
        "acme-raw",
        "acme-wrap",
        "acme-bad",
        "acme-connector",
    ];
    assert_eq!(plugins.verify_expected(&all), Ok(()));
    let mismatch = plugins.verify_expected(&all[1..]).unwrap_err();
    assert_eq!(mismatch.unexpected(), ["acme-fs"]);
}

#[test]
fn one_that_is_required_and_fails_closes_those_before_it_and_others_are_left_out() {
    static FIRST: Mutex<Option<ManualAdapter>> = Mutex::new(None);
    static ROW: L2AdapterFactory =
        L2AdapterFactory::new("first", "acme", "First", package("acme"), |_, _| {
            let manual = ManualAdapter::new()?;
            *FIRST.lock().unwrap() = Some(manual.clone());
            Ok(Box::new(manual))
        });
    let registry = L2Registry::of([&ROW], []);
    let parse = |json: &str| json.parse::<AdapterSpec>().unwrap();
    let first = parse(r#"{"type":"first"}"#);
    let optional = parse(r#"{"type":"lost","required":false}"#);
    let required = parse(r#"{"type":"lost"}"#);

    let specs = [optional.clone(), first.clone()];
    let backends = registry.open_all(&specs, &[], &options()).unwrap();
    assert_eq!(backends[0].name(), "first#1");
    drop(backends);

    let specs = [first, optional, required];
    let error = registry.open_all(&specs, &[], &options()).unwrap_err();
    assert!(
        error.to_string().starts_with("storage backend lost#2: "),
        "{error}"
    );
    assert!(FIRST.lock().unwrap().take().unwrap().is_closed());
}

/// A start waited without end, and nobody knew for what.
#[test]
fn an_adapter_that_does_not_open_is_named_and_given_up() {
    static LET_GO: Mutex<bool> = Mutex::new(false);
    static LATE: Mutex<Option<ManualAdapter>> = Mutex::new(None);
    static ROW: L2AdapterFactory =
        L2AdapterFactory::new("stuck", "acme", "Stuck", package("acme"), |_, _| {
            soon(|| *LET_GO.lock().unwrap());
            let manual = ManualAdapter::new()?;
            *LATE.lock().unwrap() = Some(manual.clone());
            Ok(Box::new(manual))
        });
    let registry = L2Registry::of([&ROW], []);
    let spec: AdapterSpec = r#"{"type":"stuck"}"#.parse().unwrap();
    let mut options = options();
    options.open_timeout = Duration::from_millis(60);
    let error = registry.open(&spec, 0, &[], options).unwrap_err();
    let said = "storage backend stuck#0: it has not opened within 60ms";
    assert!(error.to_string().starts_with(said), "{error}");
    *LET_GO.lock().unwrap() = true;
    // Nobody has it, so it is closed.
    soon(|| {
        LATE.lock()
            .unwrap()
            .as_ref()
            .is_some_and(ManualAdapter::is_closed)
    });
}

#[test]
fn a_configuration_is_checked_without_opening_anything() {
    let check = |json: &str| {
        let specs = AdapterSpec::parse_list(json).unwrap();
        registry().check(&specs).map_err(|error| error.to_string())
    };
    assert_eq!(
        check(r#"[{"type":"fs","size":7},{"type":"panics"}]"#),
        Ok(())
    );
    assert_eq!(check(r#"{"type":"lost","required":false}"#), Ok(()));
    let connector = r#""type":"native_plugin","module_path":"acme_connector","class_name":"Empty""#;
    for (json, said) in [
        (
            r#"[{"type":"raw"},{"type":"lost"}]"#.to_owned(),
            "backend lost#1: `type` is",
        ),
        (r#"{"type":"fs","size":"big"}"#.to_owned(), "no SizedConfig"),
        (
            format!(r#"{{{connector},"adapter_params":{{"size":[]}}}}"#),
            "no SizedConfig",
        ),
    ] {
        let error = check(&json).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}
