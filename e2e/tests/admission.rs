//! Every fixture of the rules against a real API server: setup objects are stored, the object is created or updated, and the
//! answer must be the fixture's. First as a dry run (which must change nothing), then for real.

mod installed;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::{Method, StatusCode};
use installed::{Caller, NAMESPACE, Said, Webhook, except, item, prepare, uninstall};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tailnet_crds::{API_VERSION, Kind, names};
use tailnet_e2e::{Cluster, Options};
use tailnet_policies::cases::{self, Case};
use tailnet_policies::{Config, Layer};

/// Who stores what a fixture says is there already: not asked by the webhook, so that objects from before a rule can exist.
const SETUP: &str = "fixture-setup";
/// How long the webhook's watches may take to follow the setup.
const FOLLOW: Duration = Duration::from_secs(5);
/// Group that may write our kinds and ConfigMaps, and nothing else.
const WRITERS: &str = "fixture-writers";
/// Group that may skip rules.
const BYPASSERS: &str = "fixture-bypassers";
const FINALIZER: &str = "example.net/kept-for-a-test";

/// How a fixture went.
enum Went {
    /// Our webhook's answer was exactly the fixture's.
    Exactly,
    /// The schema or its CEL rules refused before any webhook: `true` with the id of one of the expected rules in its text.
    BySchema(bool, String),
    /// What should be there cannot be stored any more.
    NoSetup(String),
}

fn flags(config: &Config) -> Vec<String> {
    let mut flags = vec![format!("--cluster-domain={}", config.cluster_domain)];
    flags.extend(config.service_cidrs.iter().map(|cidr| format!("--service-cidr={cidr}")));
    flags.extend(config.pod_cidrs.iter().map(|cidr| format!("--pod-cidr={cidr}")));
    flags
}

fn groups() -> Vec<String> {
    vec!["system:masters".to_owned()]
}

fn setup(caller: &Caller, method: Method, path: &str, body: Option<&Value>) -> Result<Said> {
    caller.ask(method, path, body, Some((SETUP, &groups())))
}

/// The object as somebody would write it: what only the server sets is left out.
fn written(object: &Value) -> Value {
    let mut object = object.clone();
    if object.get("apiVersion").is_none() {
        object["apiVersion"] = json!(API_VERSION);
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "resourceVersion",
            "generation",
        ] {
            metadata.remove(field);
        }
    }
    object
}

fn is_deleting(object: &Value) -> bool {
    object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|at| !at.is_null())
}

/// Stores an object of ours as it was before; Ok(Some(why)) when the schema no longer takes it.
fn store(caller: &Caller, object: &Value) -> Result<Option<String>> {
    let mut new = written(object);
    let deleting = is_deleting(object);
    if deleting && new["metadata"]["finalizers"].is_null() {
        new["metadata"]["finalizers"] = json!([FINALIZER]);
    }
    let said = caller.create_as(&new, false, Some((SETUP, &groups())))?;
    if said.status == 422 || said.status == 400 {
        return Ok(Some(said.message().to_owned()));
    }
    ensure!(said.status.is_success(), "{said:?}");
    if object.get("status").is_some() {
        new["metadata"]["resourceVersion"] = said.body["metadata"]["resourceVersion"].clone();
        let said = setup(caller, Method::PUT, &format!("{}/status", item(&new)?), Some(&new))?;
        ensure!(said.status.is_success(), "{said:?}");
    }
    if deleting {
        ensure!(setup(caller, Method::DELETE, &item(&new)?, None)?.status.is_success());
    }
    Ok(None)
}

fn namespaces_of(object: &Value) -> BTreeSet<String> {
    let texts = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let own = object.pointer("/metadata/namespace").cloned();
    let all = texts("/spec/consumerNamespaces").into_iter().chain(own);
    all.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// Makes exactly those namespaces exist that the fixture needs; others only where nobody asks for them.
fn prepare_namespaces(caller: &Caller, case: &Case) -> Result<()> {
    let mut asked: BTreeSet<String> = case
        .cluster
        .objects
        .iter()
        .chain([&case.object])
        .chain(&case.old)
        .flat_map(namespaces_of)
        .collect();
    asked.extend(
        case.cluster
            .services
            .iter()
            .flatten()
            .filter_map(|service| Some(service["metadata"]["namespace"].as_str()?.to_owned())),
    );
    let homes: BTreeSet<_> = case
        .cluster
        .objects
        .iter()
        .chain([&case.object])
        .filter_map(|object| Some(object.pointer("/metadata/namespace")?.as_str()?.to_owned()))
        .collect();
    for name in asked {
        // An object must have a namespace to be in; besides, what the fixture lists, or all when it lists none.
        let wanted = homes.contains(&name)
            || case
                .cluster
                .namespaces
                .as_ref()
                .is_none_or(|listed| listed.contains(&name));
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        if name.is_empty()
            || name.len() > 63
            || name
                .chars()
                .any(|c| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'))
        {
            continue;
        }
        let there = caller.get(&namespace)?.status.is_success();
        if wanted && !there {
            let said = caller.create(&namespace, false)?;
            ensure!(said.status.is_success(), "{said:?}");
        } else if !wanted && there {
            remove_namespace(caller, &namespace)?;
        }
    }
    Ok(())
}

/// Removes an empty namespace at once, as the controller would a while later.
fn remove_namespace(caller: &Caller, namespace: &Value) -> Result<()> {
    let path = item(namespace)?;
    caller.delete(namespace)?;
    let mut last = namespace.clone();
    last["spec"] = json!({"finalizers": []});
    caller.ask(Method::PUT, &format!("{path}/finalize"), Some(&last), None)?;
    ensure!(caller.get(namespace)?.status == 404, "{path} is still there");
    Ok(())
}

/// Makes the API server say that it wrote `field` of a stored object at `at`: what it says of another writer's fields can be
/// set, where something else changes too.
fn backdate(caller: &Caller, object: &Value, field: Value, at: Timestamp) -> Result<()> {
    let mut stored = caller.get(object)?.body;
    stored["metadata"]["labels"]["example.net/backdated"] = json!("yes");
    stored["metadata"]["managedFields"] = json!([{
        "manager": "tailnet-operator", "operation": "Update", "apiVersion": stored["apiVersion"],
        "fieldsType": "FieldsV1", "fieldsV1": field, "time": at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    }]);
    let said = caller.update_as(&stored, false, None)?;
    ensure!(said.status.is_success(), "{said:?}");
    Ok(())
}

/// Whether facts of the fixture are old.
fn is_stale(case: &Case) -> bool {
    case.cluster.facts.values().any(|aged| aged.age_seconds > 60)
}

/// What the operator would have published.
fn publish(caller: &Caller, case: &Case) -> Result<()> {
    let create = |object: Value| -> Result<()> {
        let said = caller.create(&object, false)?;
        ensure!(said.status.is_success(), "{said:?}");
        Ok(())
    };
    for (tailnet, aged) in &case.cluster.facts {
        let renewed = Timestamp::now() - SignedDuration::from_secs(i64::try_from(aged.age_seconds)?);
        let published = |object: Value, field: Value| -> Result<()> {
            create(object.clone())?;
            if is_stale(case) {
                backdate(caller, &object, field, renewed)?;
            }
            Ok(())
        };
        let mut facts = aged.facts.clone();
        // The heartbeat decides; facts that were read later than it would be younger than the fixture says.
        facts.read_at = (renewed - SignedDuration::from_secs(1)).to_string();
        for chunk in facts.to_chunks() {
            let config_map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": names::tailnet::facts_config_map(tailnet, chunk.index), "namespace": NAMESPACE,
                    "labels": {names::label::FACTS: tailnet},
                    "annotations": {
                        names::annotation::FACTS_CHUNKS: chunk.count.to_string(),
                        names::annotation::FACTS_SHA256: chunk.sha256,
                    },
                },
                "data": {"chunk": chunk.text},
            });
            published(config_map, json!({"f:data": {"f:chunk": {}}}))?;
        }
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": names::tailnet::facts_lease(tailnet), "namespace": NAMESPACE},
            "spec": {"renewTime": format!("{renewed:.6}")},
        });
        published(lease, json!({"f:spec": {"f:renewTime": {}}}))?;
    }
    for config_map in case.cluster.config_maps.iter().flatten() {
        let mut config_map = written(config_map);
        config_map["apiVersion"] = json!("v1");
        config_map["kind"] = json!("ConfigMap");
        config_map["metadata"]["namespace"] = json!(NAMESPACE);
        // Without its label: what is there before may have faults.
        config_map["metadata"]["labels"] = Value::Null;
        create(config_map)?;
    }
    for (name, data) in &case.cluster.policies {
        // By whom nobody asks: also a policy that does not compile must be able to be there.
        let policy = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {names::label::ADMISSION_POLICY: "true"}},
            "data": data,
        });
        let said = caller.create_as(&policy, false, Some((SETUP, &groups())))?;
        ensure!(said.status.is_success(), "{said:?}");
    }
    for (tailnet, claims) in &case.cluster.claims {
        let mut claims = claims.clone();
        // The server gives other UIDs than the fixture; a claim without one is of whoever has the name.
        claims.claims.values_mut().for_each(|claim| claim.uid = None);
        create(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": names::tailnet::claims_config_map(tailnet), "namespace": NAMESPACE},
            "data": {"claims": claims.to_json()?},
        }))?;
    }
    Ok(())
}

/// Removes all that fixtures store, namespaces aside.
fn clear(caller: &Caller) -> Result<()> {
    let list = |path: &str| -> Result<Vec<Value>> {
        let said = caller.ask(Method::GET, path, None, None)?;
        ensure!(said.status.is_success(), "{path}: {said:?}");
        Ok(said.body["items"].as_array().cloned().unwrap_or_default())
    };
    let path = |root: &str, plural: &str, object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}/{name}"),
            None => format!("{root}/{plural}/{name}"),
        }
    };
    for kind in Kind::ALL {
        for object in list(&format!("/apis/{API_VERSION}/{}", kind.plural()))? {
            let path = path(&format!("/apis/{API_VERSION}"), kind.plural(), &object);
            if object["metadata"]["finalizers"].is_array() {
                setup(
                    caller,
                    Method::PATCH,
                    &path,
                    Some(&json!({"metadata": {"finalizers": null}})),
                )?;
            }
            let said = setup(caller, Method::DELETE, &path, None)?;
            ensure!(said.status.is_success() || said.status == 404, "{said:?}");
        }
    }
    let ours = |object: &Value, prefixes: &[&str]| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    for (root, plural, prefixes) in [
        (
            "/api/v1",
            "configmaps",
            &["tailnet-facts-", "tailnet-claims-", "tailnet-policy"][..],
        ),
        ("/apis/coordination.k8s.io/v1", "leases", &["tailnet-facts-"][..]),
    ] {
        for object in list(&format!("{root}/namespaces/{NAMESPACE}/{plural}"))? {
            let policy = object["metadata"]["labels"][names::label::ADMISSION_POLICY] == "true";
            if ours(&object, prefixes) || policy {
                caller.ask(Method::DELETE, &path(root, plural, &object), None, None)?;
            }
        }
    }
    for service in list("/api/v1/services")? {
        if service["metadata"]["name"] != "kubernetes" {
            caller.ask(Method::DELETE, &path("/api/v1", "services", &service), None, None)?;
        }
    }
    Ok(())
}

/// The answer in the words of the fixtures, without what rests on something that the fixture says nothing of: here it does not exist.
fn lines(case: &Case, said: &Said) -> Vec<String> {
    let mut lines: Vec<_> = said.causes().iter().map(|cause| format!("deny {cause}")).collect();
    let mut warnings = cases::whole_warnings(said.warnings.iter().map(String::as_str));
    // The API server's own, about fields that it drops.
    warnings.retain(|text| !text.starts_with("unknown field "));
    let (services, config_maps) = (&case.cluster.services, &case.cluster.config_maps);
    warnings.retain(|text| services.is_some() || !text.ends_with("[TN307]"));
    warnings.retain(|text| {
        config_maps.is_some()
            || case.kind.is_none()
            || !(text.ends_with("[TN106]") && text.contains("there is no ConfigMap"))
    });
    lines.extend(warnings.iter().filter_map(|warning| cases::warning_line(warning)));
    lines
}

fn by_our_webhook(said: &Said) -> bool {
    said.message()
        .starts_with("admission webhook \"validate.tsunaro.io\" denied the request: ")
        || said
            .message()
            .starts_with("admission webhook \"validate-policy.tsunaro.io\" denied the request: ")
}

/// Whether this is the fixture's answer; Err says why not (yet).
fn judge(case: &Case, said: &Said) -> Result<Went> {
    let denies = case.expect.iter().any(|line| line.starts_with("deny "));
    let found = lines(case, said);
    if denies && (said.status == 422 || said.status == 400) && !by_our_webhook(said) {
        let ids = case.expect.iter().filter_map(|line| Some(&line[line.rfind('[')?..]));
        let named = ids.into_iter().any(|id| said.message().contains(id));
        return Ok(Went::BySchema(named, said.message().to_owned()));
    }
    ensure!(
        said.status.is_success() != denies && found == case.expect,
        "{}\n  expected {:#?}\n  found ({}) {found:#?}\n  {}",
        case.name,
        case.expect,
        said.status,
        said.message()
    );
    Ok(Went::Exactly)
}

fn send(caller: &Caller, case: &Case, dry_run: bool) -> Result<Said> {
    let mut object = written(&case.object);
    let unheld = |old: &Value| is_deleting(old) && old["metadata"]["finalizers"].is_null();
    if case.old.as_ref().is_some_and(unheld) {
        object["metadata"]["finalizers"] = json!([FINALIZER]);
    }
    let user = case.user.as_ref().map(|user| {
        let mut groups = user.groups.clone();
        groups.push("system:authenticated".to_owned());
        // Members of system:masters may do everything, so also skip rules: who may not is none of them.
        match user.may_bypass {
            Some(true) => groups.extend([WRITERS.to_owned(), BYPASSERS.to_owned()]),
            Some(false) => groups.push(WRITERS.to_owned()),
            None => groups.extend(crate::groups()),
        }
        (
            if user.username.is_empty() {
                "somebody".to_owned()
            } else {
                user.username.clone()
            },
            groups,
        )
    });
    let user = user.as_ref().map(|(name, groups)| (name.as_str(), groups.as_slice()));
    if case.deletes {
        caller.delete_as(&object, dry_run, user)
    } else if case.old.is_some() {
        caller.update_as(&object, dry_run, user)
    } else {
        caller.create_as(&object, dry_run, user)
    }
}

fn stored(caller: &Caller, case: &Case) -> Result<(StatusCode, Value)> {
    let said = caller.get(&written(&case.object))?;
    Ok((said.status, said.body["metadata"]["resourceVersion"].clone()))
}

/// `restart` starts the webhook anew: what a watch brings has just happened, so that only what was there before can be old.
fn replay(caller: &Caller, case: &Case, restart: impl FnOnce() -> Result<()>) -> Result<Went> {
    clear(caller)?;
    prepare_namespaces(caller, case)?;
    for service in case.cluster.services.iter().flatten() {
        let mut service = written(service);
        service["apiVersion"] = json!("v1");
        service["kind"] = json!("Service");
        if service.pointer("/spec/ports").is_none() && service.pointer("/spec/type").is_none() {
            service["spec"]["ports"] = json!([{"port": 80}]);
        }
        let said = caller.create(&service, false)?;
        ensure!(said.status.is_success(), "{}: {said:?}", case.name);
    }
    publish(caller, case)?;
    if is_stale(case) {
        restart()?;
    }
    for (name, labels) in &case.cluster.namespace_labels {
        let labels = json!({"metadata": {"labels": labels}});
        let said = setup(
            caller,
            Method::PATCH,
            &format!("/api/v1/namespaces/{name}"),
            Some(&labels),
        )?;
        ensure!(said.status.is_success(), "{}: {said:?}", case.name);
    }
    let age = |object: &Value| {
        object
            .pointer("/metadata/creationTimestamp")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let going = case.deletes.then_some(&case.object);
    let mut objects: Vec<_> = case.cluster.objects.iter().chain(&case.old).chain(going).collect();
    // Those without an age first: the Tailnets.
    objects.sort_by_key(|object| age(object));
    let mut last = None;
    for object in objects {
        if last.is_some() && last < age(object) {
            // The server's own creationTimestamps have to differ: they count seconds.
            std::thread::sleep(Duration::from_millis(1010));
        }
        last = age(object);
        if let Some(why) = store(caller, object)? {
            return Ok(Went::NoSetup(why));
        }
    }
    let before = stored(caller, case)?;
    let start = Instant::now();
    let went = loop {
        match judge(case, &send(caller, case, true)?) {
            Ok(went) => break went,
            Err(error) if start.elapsed() > FOLLOW => return Err(error.context("dry run")),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    ensure!(
        stored(caller, case)? == before,
        "{}: the dry run changed something",
        case.name
    );
    judge(case, &send(caller, case, false)?).context("for real")?;
    let denies = case.expect.iter().any(|line| line.starts_with("deny "));
    let after = stored(caller, case)?;
    if denies {
        ensure!(after == before, "{}: a refused object was stored", case.name);
    } else if case.deletes {
        ensure!(after.0 == StatusCode::NOT_FOUND, "{}: it is still there", case.name);
    } else if !case.old.as_ref().is_some_and(is_deleting) {
        // One that is being deleted may be gone now.
        ensure!(after.0.is_success(), "{}: an accepted object was not stored", case.name);
    }
    Ok(went)
}

/// The rights of [`WRITERS`] and [`BYPASSERS`].
fn grant(caller: &Caller) -> Result<()> {
    let api = "rbac.authorization.k8s.io/v1";
    let ours = json!([
        {"apiGroups": [tailnet_crds::GROUP], "resources": Kind::ALL.map(Kind::plural), "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]},
    ]);
    let bypass = json!([{"apiGroups": [tailnet_crds::GROUP], "resources": [names::BYPASS_RESOURCE], "verbs": ["use"]}]);
    for (group, rules) in [(WRITERS, ours), (BYPASSERS, bypass)] {
        let metadata = json!({"name": group});
        let subject = json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group});
        let role = json!({"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": group});
        for object in [
            json!({"apiVersion": api, "kind": "ClusterRole", "metadata": metadata, "rules": rules}),
            json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": role, "subjects": [subject]}),
        ] {
            let said = caller.create(&object, false)?;
            ensure!(said.status.is_success(), "{said:?}");
        }
    }
    Ok(())
}

#[test]
fn every_fixture_gives_its_answer_on_a_real_api_server() -> Result<()> {
    // Without controllers: the garbage collector would remove Services whose owners exist in a fixture only.
    let cluster = &Cluster::up(Options {
        controllers: false,
        ..Options::api("admission-fixtures")
    })?;
    prepare(cluster)?;
    let caller = Caller::new(cluster)?;
    grant(&caller)?;
    let mut by_config: BTreeMap<Vec<String>, Vec<Case>> = BTreeMap::new();
    for case in cases::load(&cases::directory())?
        .into_iter()
        .filter(|case| case.layer() == Layer::Webhook)
    {
        let config = case.snapshot().config().clone();
        if config.operator_namespace != NAMESPACE {
            // The roles of this cluster's webhook are for one operator namespace.
            eprintln!(
                "{}: for an installation in {}, not replayed here",
                case.name, config.operator_namespace
            );
            continue;
        }
        by_config.entry(flags(&config)).or_default().push(case);
    }
    let (mut exactly, mut named, mut unnamed, mut no_setup, mut failures) = (0, 0, Vec::new(), Vec::new(), Vec::new());
    for (number, (flags, cases)) in by_config.iter().enumerate() {
        clear(&caller)?;
        let mut webhook = Webhook::start_with(cluster, &format!("webhook-fixtures-{number}"), 9443, flags)?;
        webhook.install(cluster, except(SETUP))?;
        webhook.wait_ready()?;
        webhook.wait_called(cluster)?;
        for (index, case) in cases.iter().enumerate() {
            let restart = || {
                webhook.process.kill()?;
                let name = format!("webhook-fixtures-{number}-{index}");
                webhook = Webhook::start_with(cluster, &name, 9443, flags)?;
                webhook.wait_ready()?;
                webhook.wait_called(cluster)
            };
            match replay(&caller, case, restart) {
                Ok(Went::Exactly) => exactly += 1,
                Ok(Went::BySchema(true, _)) => named += 1,
                Ok(Went::BySchema(false, why)) => unnamed.push(format!("{}: {why}", case.name)),
                Ok(Went::NoSetup(why)) => no_setup.push(format!("{}: {why}", case.name)),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        clear(&caller)?;
        webhook.process.kill()?;
        uninstall(cluster)?;
    }
    eprintln!("{exactly} exactly by the webhook, {named} refused by CEL with a rule's id");
    eprintln!(
        "{} refused by the schema's own words:\n  {}",
        unnamed.len(),
        unnamed.join("\n  ")
    );
    eprintln!(
        "{} cannot be set up, the schema refuses what is to be there before:\n  {}",
        no_setup.len(),
        no_setup.join("\n  ")
    );
    assert!(
        failures.is_empty(),
        "{} fixtures differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(exactly > 200, "only {exactly} fixtures reached the webhook");
    // Few may go another way: a schema that hides the webhook's messages would be a loss for people.
    assert!(
        unnamed.len() <= 20 && no_setup.len() <= 10,
        "too many fixtures do not reach a rule, see above"
    );
    Ok(())
}
