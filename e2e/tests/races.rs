//! Two that ask for the same at once, through two replicas of the webhook and past a real operator: exactly one gets it, the
//! other is told who has it, and nothing of the other is ever made. `TAILNET_LONG_TESTS` makes 500 rounds of it.

mod installed;
mod operating;

use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use installed::{Caller, Said, Webhook, balancer, except, item};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use operating::{Kube, NAMESPACE, Operator, TAILNET, USER, apply, cluster, egress, start_over};
use serde_json::{Value, json};
use tailnet_crds::API_VERSION;
use tailnet_e2e::{Cluster, one_at_a_time, wait_for};

const SOON: Duration = Duration::from_secs(60);
/// Where the API server finds the webhook; behind it two replicas answer in turn.
const WEBHOOK: u16 = 9445;
/// Whose requests no webhook sees, as when it was down with another failure policy.
const BYPASS: &str = "bypass";
/// Pairs that race at the same time.
const BATCH: usize = 10;

fn rounds(short: usize, long: usize) -> usize {
    if std::env::var_os("TAILNET_LONG_TESTS").is_some() {
        long
    } else {
        short
    }
}

/// A cluster with a Tailnet, an operator and two replicas of the webhook.
struct Bed {
    cluster: &'static Cluster,
    kube: Kube,
    caller: Caller,
    operator: Mutex<Option<Operator>>,
    webhooks: Vec<Webhook>,
}

impl Bed {
    /// The one that all tests of this binary share, in turn; each has pairs of its own numbers.
    fn shared() -> Result<&'static Self> {
        static BED: OnceLock<Result<Bed, String>> = OnceLock::new();
        let made = BED.get_or_init(|| Self::new().map_err(|error| format!("{error:#}")));
        made.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
    }

    fn new() -> Result<Self> {
        let cluster = cluster();
        installed::prepare(cluster)?;
        let kube = start_over(cluster)?;
        for namespace in ["team-a", "team-b"] {
            apply(
                cluster,
                &[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})],
            )?;
        }
        apply(cluster, &[tailnet(cluster)?])?;
        balancer::start(cluster, WEBHOOK, vec![9443, 9444])?;
        let mut webhooks = Vec::new();
        for port in [9443, 9444] {
            webhooks.push(Webhook::start(cluster, &format!("races-webhook-{port}"), port)?);
        }
        let (own, webhook) = (webhooks[0].port, &mut webhooks[0]);
        webhook.port = WEBHOOK;
        webhook.install(cluster, except(BYPASS))?;
        webhook.port = own;
        for webhook in &webhooks {
            webhook.wait_ready()?;
        }
        webhooks[0].wait_called(cluster)?;
        let operator = Operator::start(cluster, "races-operator")?;
        let bed = Self {
            cluster,
            kube,
            caller: Caller::new(cluster)?,
            operator: Mutex::new(Some(operator)),
            webhooks,
        };
        wait_for("both webhooks know the Tailnet", SOON, || {
            for _ in 0..4 {
                let said = bed
                    .caller
                    .create(&installed::site("known", &["203.0.113.0/24"], TAILNET), true)?;
                ensure!(
                    said.status.is_success() && said.warnings.iter().all(|text| !text.contains("TN001")),
                    "{said:?}"
                );
            }
            Ok(())
        })?;
        Ok(bed)
    }

    fn accepted(&self, object: &Value) -> Result<(String, String, String)> {
        let live = self.caller.get(object)?;
        ensure!(live.status.is_success(), "{live:?}");
        let generation = &live.body["metadata"]["generation"];
        let conditions = live.body.pointer("/status/conditions").and_then(Value::as_array);
        let accepted = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == "Accepted");
        let accepted = accepted.context("no condition Accepted yet")?;
        ensure!(
            &accepted["observedGeneration"] == generation,
            "of generation {}",
            accepted["observedGeneration"]
        );
        let text = |key: &str| accepted[key].as_str().unwrap_or_default().to_owned();
        Ok((text("status"), text("reason"), text("message")))
    }

    fn wait_accepted(&self, object: &Value) -> Result<()> {
        wait_for(&format!("{} is accepted", name_of(object)), SOON, || {
            let (status, reason, message) = self.accepted(object)?;
            ensure!(status == "True", "{status} {reason}: {message}");
            Ok(())
        })
    }

    /// Which of two stored rivals is accepted; the other must name it.
    fn winner(&self, pair: &Pair) -> Result<usize> {
        wait_for(&format!("{} has one winner", pair.what), SOON, || {
            let verdicts = [self.accepted(&pair.objects[0])?, self.accepted(&pair.objects[1])?];
            let winner = match (verdicts[0].0.as_str(), verdicts[1].0.as_str()) {
                ("True", "False") => 0,
                ("False", "True") => 1,
                _ => bail!("{verdicts:?}"),
            };
            let (_, reason, message) = &verdicts[1 - winner];
            ensure!(
                reason == "HeldByOther" || reason == "WaitingForHolder",
                "{reason}: {message}"
            );
            ensure!(
                message.contains(&name_of(&pair.objects[winner])),
                "the holder is not named: {message}"
            );
            Ok(winner)
        })
    }

    /// Names of what the operator has created for an object at any time, by its names.
    fn made_for(&self, object: &Value) -> Result<Vec<String>> {
        let name = format!(
            "tailnet-egress-{}",
            object["metadata"]["name"].as_str().context("name")?
        );
        let mut made = Vec::new();
        for event in self.cluster.audit_log()? {
            let created = event["verb"] == "create" && event["responseStatus"]["code"] == 201;
            let target = event["objectRef"]["name"].as_str().unwrap_or_default();
            let its = target == name || target.starts_with(&format!("{name}-"));
            if created && its && event["user"]["username"] == USER {
                made.push(format!("{} {target}", event["objectRef"]["resource"]));
            }
        }
        Ok(made)
    }

    fn delete_all(&self, pairs: &[Pair]) -> Result<()> {
        for object in pairs.iter().flat_map(|pair| &pair.objects) {
            self.caller.delete(object)?;
        }
        wait_for("the children are gone", SOON, || {
            for pair in pairs {
                for object in &pair.objects {
                    let name = format!(
                        "tailnet-egress-{}",
                        object["metadata"]["name"].as_str().unwrap_or_default()
                    );
                    let deployment = self.kube.find::<k8s_openapi::api::apps::v1::Deployment>(&name)?;
                    ensure!(deployment.is_none(), "{name}");
                }
            }
            Ok(())
        })
    }

    fn stop_operator(&self) -> Result<()> {
        let operator = self.operator.lock().unwrap_or_else(PoisonError::into_inner).take();
        operator.context("operator")?.stop()
    }

    fn start_operator(&self, name: &str) -> Result<()> {
        let operator = Operator::start(self.cluster, name)?;
        *self.operator.lock().unwrap_or_else(PoisonError::into_inner) = Some(operator);
        Ok(())
    }
}

/// The Tailnet of all pairs.
fn tailnet(cluster: &Cluster) -> Result<Value> {
    let mut tailnet = operating::tailnet(cluster, TAILNET)?;
    tailnet["spec"]["dns"]["ingressNameTemplate"] = json!("{name}.races.example.net");
    tailnet["spec"]["policy"] =
        json!({"baseConfigMap": "base", "routeApprovers": ["tag:router"], "ingressSourceAllowlist": ["group:a"]});
    Ok(tailnet)
}

fn name_of(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    match text("/metadata/namespace") {
        "" => format!("{} {}", text("/kind"), text("/metadata/name")),
        namespace => format!("{} {namespace}/{}", text("/kind"), text("/metadata/name")),
    }
}

/// Two that exclude each other.
struct Pair {
    what: String,
    number: usize,
    objects: [Value; 2],
    rule: &'static str,
}

impl Pair {
    /// The object as it is before it asks for what the other asks for.
    fn with_its_own(&self, side: usize) -> Value {
        let mut own = self.objects[side].clone();
        let unique = format!("{}-own", own["metadata"]["name"].as_str().unwrap_or_default());
        let number = 2 * self.number + side;
        match self.rule {
            "TN403" => own["spec"]["prefixes"] = json!([format!("10.{}.{}.0/24", 200 + number / 250, number % 250)]),
            "TN304" => own["spec"]["exposes"][0]["dnsLabel"] = json!(unique),
            "TN202" => own["spec"]["targets"][0]["name"] = json!(unique),
            "TN206" => own["spec"]["targets"][0]["aliases"] = json!([]),
            _ => own["spec"]["tag"] = json!(format!("tag:{unique}")),
        }
        own
    }
}

fn ingress(name: &str, namespace: &str, label: &str) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "TailnetIngress", "metadata": {"name": name, "namespace": namespace},
        "spec": {"tailnetRef": {"name": TAILNET}, "allowFrom": ["group:a"], "exposes": [
            {"name": "x", "dnsLabel": label, "port": 5432, "backend": {"service": "x", "port": 1}},
        ]},
    })
}

/// The `n`th pair: the kinds take turns.
fn pair(n: usize) -> Pair {
    let (a, b) = (format!("a{n}"), format!("b{n}"));
    let alone = |name: &str| egress(name, &[(&format!("svc-{name}"), "192.0.2.10", 5432)]);
    let site = |name: &str, prefix: String| installed::site(name, &[&prefix], TAILNET);
    let (rule, objects) = match n % 5 {
        0 => (
            "TN403",
            [
                site(&a, format!("10.{}.{}.0/24", n / 250, n % 250)),
                site(&b, format!("10.{}.{}.128/25", n / 250, n % 250)),
            ],
        ),
        1 => (
            "TN304",
            [
                ingress(&a, "team-a", &format!("portal-{n}")),
                ingress(&b, "team-b", &format!("portal-{n}")),
            ],
        ),
        2 => {
            let shared = format!("shared-{n}");
            (
                "TN202",
                [
                    egress(&a, &[(&shared, "192.0.2.10", 5432)]),
                    egress(&b, &[(&shared, "192.0.2.11", 5432)]),
                ],
            )
        }
        3 => {
            let mut objects = [alone(&a), alone(&b)];
            for object in &mut objects {
                object["spec"]["targets"][0]["aliases"] = json!([format!("db-{n}.example.com")]);
            }
            ("TN206", objects)
        }
        _ => {
            let mut objects = [alone(&a), ingress(&b, NAMESPACE, &b)];
            for object in &mut objects {
                object["spec"]["tag"] = json!(format!("tag:shared-{n}"));
            }
            ("TN005", objects)
        }
    };
    Pair {
        what: format!("pair {n} ({rule})"),
        number: n,
        objects,
        rule,
    }
}

/// Both requests of each pair at the same moment; the answers by pair.
fn at_once(
    bed: &Bed,
    pairs: &[Pair],
    ask: impl Fn(&Caller, &Pair, usize) -> Result<Said> + Sync,
) -> Result<Vec<[Said; 2]>> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for pair in pairs {
            let barrier = std::sync::Arc::new(Barrier::new(2));
            for side in 0..2 {
                let (barrier, ask, cluster) = (std::sync::Arc::clone(&barrier), &ask, bed.cluster);
                threads.push(scope.spawn(move || {
                    let caller = Caller::new(cluster)?;
                    // The connection is there before the race.
                    let ready = caller.get(&pair.objects[side]);
                    barrier.wait();
                    ready?;
                    ask(&caller, pair, side)
                }));
            }
        }
        let mut answers = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("panicked"))?);
        let mut by_pair = Vec::new();
        while let (Some(first), Some(second)) = (answers.next(), answers.next()) {
            by_pair.push([first?, second?]);
        }
        Ok(by_pair)
    })
}

/// One winner among the answers, or two who were let in and then one that the operator accepts: gives the winner, and whether
/// both were let in.
fn settle(bed: &Bed, pair: &Pair, said: &[Said; 2]) -> Result<(usize, bool)> {
    match [said[0].status.is_success(), said[1].status.is_success()] {
        [true, true] => Ok((bed.winner(pair)?, true)),
        [false, false] => bail!("{}: both were refused: {said:?}", pair.what),
        [first, _] => {
            let winner = usize::from(!first);
            let refused = &said[1 - winner];
            let holder = name_of(&pair.objects[winner]);
            ensure!(
                refused.status == 422 && refused.message().contains(&holder) && refused.message().contains(pair.rule),
                "{}: {refused:?}",
                pair.what
            );
            Ok((winner, false))
        }
    }
}

#[test]
fn of_two_that_are_created_at_once_exactly_one_is_accepted() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let total = rounds(10, 500);
    let mut both_let_in = 0;
    for first in (0..total).step_by(BATCH) {
        let pairs: Vec<Pair> = (first..total.min(first + BATCH)).map(pair).collect();
        let said = at_once(bed, &pairs, |caller, pair, side| {
            caller.create(&pair.objects[side], false)
        })?;
        let mut decided = Vec::new();
        for (pair, said) in pairs.iter().zip(&said) {
            let (winner, both) = settle(bed, pair, said)?;
            both_let_in += usize::from(both);
            bed.wait_accepted(&pair.objects[winner])?;
            decided.push((&pair.objects[winner], &pair.objects[1 - winner]));
            if pair.rule == "TN202" {
                let service = pair.objects[winner]["spec"]["targets"][0]["name"]
                    .as_str()
                    .context("name")?
                    .to_owned();
                let uid = bed.caller.get(&pair.objects[winner])?.body["metadata"]["uid"].clone();
                wait_for(&format!("Service {service} is the winner's"), SOON, || {
                    let service: Service = bed.kube.get(&service)?;
                    let owner = service.metadata.owner_references.unwrap_or_default();
                    ensure!(
                        owner.first().map(|owner| json!(owner.uid)) == Some(uid.clone()),
                        "{owner:?}"
                    );
                    Ok(())
                })?;
            }
        }
        // Nothing of a loser was made, also not for a moment. Afterwards it may get what the winner leaves.
        for (winner, loser) in &decided {
            assert_eq!(bed.made_for(loser)?, Vec::<String>::new(), "of {}", name_of(loser));
            if winner["kind"] == "TailnetEgress" {
                wait_for("the audit log shows what the winner has", SOON, || {
                    ensure!(!bed.made_for(winner)?.is_empty(), "{}", name_of(winner));
                    Ok(())
                })?;
            }
        }
        bed.delete_all(&pairs)?;
    }
    // Both replicas were asked.
    let asked: Vec<usize> = bed.webhooks.iter().map(|webhook| webhook.audit_lines().len()).collect();
    eprintln!("{total} pairs, in {both_let_in} of them both were let in; requests by replica: {asked:?}");
    assert!(asked.iter().all(|count| *count > total / 4), "{asked:?}");
    Ok(())
}

#[test]
fn of_two_that_are_changed_at_once_exactly_one_is_accepted() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let total = rounds(5, 100);
    let mut both_let_in = 0;
    for first in (0..total).step_by(BATCH) {
        let pairs: Vec<Pair> = (first..total.min(first + BATCH)).map(|n| pair(1000 + n)).collect();
        // Each begins with something of its own.
        for (pair, side) in pairs.iter().flat_map(|pair| [(pair, 0), (pair, 1)]) {
            let said = bed.caller.create(&pair.with_its_own(side), false)?;
            ensure!(said.status == 201, "{said:?}");
        }
        for object in pairs.iter().flat_map(|pair| &pair.objects) {
            bed.wait_accepted(object)?;
        }
        let said = at_once(bed, &pairs, |caller, pair, side| {
            let object = &pair.objects[side];
            caller.ask(
                Method::PATCH,
                &item(object)?,
                Some(&json!({"spec": object["spec"]})),
                None,
            )
        })?;
        for (pair, said) in pairs.iter().zip(&said) {
            let (winner, both) = settle(bed, pair, said)?;
            both_let_in += usize::from(both);
            bed.wait_accepted(&pair.objects[winner])?;
            if !both {
                // Who was refused keeps what it had.
                bed.wait_accepted(&pair.objects[1 - winner])?;
            }
        }
        bed.delete_all(&pairs)?;
    }
    eprintln!("{total} pairs, in {both_let_in} of them both changes were let in");
    Ok(())
}

/// Past the webhook, so that the record alone decides.
#[test]
fn an_incumbent_never_loses_to_an_older_object_that_asks_later() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let count = rounds(5, 20);
    let pairs: Vec<Pair> = (2000..2000 + count).map(pair).collect();
    for pair in &pairs {
        ensure!(bed.caller.create(&pair.with_its_own(0), false)?.status == 201);
    }
    std::thread::sleep(Duration::from_millis(1100)); // creationTimestamps count seconds
    for pair in &pairs {
        ensure!(bed.caller.create(&pair.objects[1], false)?.status == 201);
    }
    for pair in &pairs {
        bed.wait_accepted(&pair.objects[1])?;
    }
    // Through the webhook it is refused.
    for pair in &pairs {
        let patch = json!({"spec": pair.objects[0]["spec"]});
        let said = bed
            .caller
            .ask(Method::PATCH, &item(&pair.objects[0])?, Some(&patch), None)?;
        ensure!(
            said.status == 422 && said.message().contains(&name_of(&pair.objects[1])),
            "{said:?}"
        );
    }
    let groups = ["system:masters".to_owned()];
    for pair in &pairs {
        let patch = json!({"spec": pair.objects[0]["spec"]});
        let path = item(&pair.objects[0])?;
        let said = bed
            .caller
            .ask(Method::PATCH, &path, Some(&patch), Some((BYPASS, &groups)))?;
        ensure!(said.status == 200, "{said:?}");
    }
    for pair in &pairs {
        ensure!(bed.winner(pair)? == 1, "{}: the older one won", pair.what);
    }
    bed.delete_all(&pairs)?;
    Ok(())
}

#[test]
fn a_new_object_gets_what_was_deleted_a_moment_ago() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let pairs: Vec<Pair> = (3000..3000 + rounds(5, 50)).map(pair).collect();
    for pair in &pairs {
        ensure!(bed.caller.create(&pair.objects[0], false)?.status == 201);
    }
    for pair in &pairs {
        bed.wait_accepted(&pair.objects[0])?;
    }
    for pair in &pairs {
        ensure!(bed.caller.delete(&pair.objects[0])?.status.is_success());
        let said = bed.caller.create(&pair.objects[1], false)?;
        ensure!(said.status == 201, "{}: {said:?}", pair.what);
    }
    for pair in &pairs {
        bed.wait_accepted(&pair.objects[1])?;
    }
    bed.delete_all(&pairs)
}

/// The order of GitOps tools: the new object is applied, then the old one is pruned.
#[test]
fn a_rename_that_is_announced_takes_over() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let mut pairs: Vec<Pair> = (4000..4005).map(pair).collect();
    for Pair {
        number, objects, rule, ..
    } in &mut pairs
    {
        // A tenant takes over in its own namespace only.
        if *rule == "TN304" {
            objects[1] = ingress(&format!("b{number}"), "team-a", &format!("portal-{number}"));
        }
        ensure!(bed.caller.create(&objects[0], false)?.status == 201);
    }
    for Pair {
        objects: [old, new],
        rule,
        ..
    } in &mut pairs
    {
        bed.wait_accepted(old)?;
        let said = bed.caller.create(new, true)?;
        ensure!(said.status == 422, "without the announcement it is refused: {said:?}");
        // `TailnetSite a` is written TailnetSite/a.
        new["metadata"]["annotations"] = json!({"tsunaro.io/takes-over": name_of(old).replace(' ', "/")});
        let said = bed.caller.create(new, false)?;
        let warned = said.warnings.iter().any(|text| text.contains(*rule));
        ensure!(said.status == 201 && warned, "{said:?}");
    }
    for Pair {
        objects: [old, new], ..
    } in &pairs
    {
        wait_for(&format!("{} waits", name_of(new)), SOON, || {
            let (status, reason, message) = bed.accepted(new)?;
            ensure!(
                status == "False" && reason == "WaitingForHolder",
                "{status} {reason}: {message}"
            );
            Ok(())
        })?;
        bed.wait_accepted(old)?;
        assert_eq!(
            bed.made_for(new)?,
            Vec::<String>::new(),
            "while {} waited",
            name_of(new)
        );
    }
    for Pair { objects: [old, _], .. } in &pairs {
        ensure!(bed.caller.delete(old)?.status.is_success());
    }
    for Pair { objects: [_, new], .. } in &pairs {
        bed.wait_accepted(new)?;
    }
    bed.delete_all(&pairs)
}

/// Objects and records come back with other UIDs and in any order.
#[test]
fn a_backup_is_restored_into_an_empty_cluster() -> Result<()> {
    let _turn = one_at_a_time();
    let bed = Bed::shared()?;
    let objects: Vec<Value> = (5000..5010).map(|n| pair(n).objects[n % 2].clone()).collect();
    for object in &objects {
        ensure!(bed.caller.create(object, false)?.status == 201);
    }
    for object in &objects {
        bed.wait_accepted(object)?;
    }
    let mut backup: Vec<Value> = Vec::new();
    for object in &objects {
        backup.push(bed.caller.get(object)?.body);
    }
    let records: Vec<ConfigMap> = bed
        .kube
        .list::<ConfigMap>()?
        .into_iter()
        .filter(|map| {
            map.metadata
                .name
                .as_deref()
                .is_some_and(|name| name.starts_with("tailnet-claims-"))
        })
        .collect();
    ensure!(!records.is_empty());

    bed.stop_operator()?;
    start_over(bed.cluster)?;
    apply(bed.cluster, &[tailnet(bed.cluster)?])?;
    let without_server_fields = |mut value: Value| {
        if let Some(metadata) = value["metadata"].as_object_mut() {
            for field in [
                "uid",
                "resourceVersion",
                "creationTimestamp",
                "generation",
                "managedFields",
            ] {
                metadata.remove(field);
            }
        }
        value
    };
    for record in &records {
        let mut value = without_server_fields(serde_json::to_value(record)?);
        (value["apiVersion"], value["kind"]) = (json!("v1"), json!("ConfigMap"));
        ensure!(bed.caller.create(&value, false)?.status == 201);
    }
    backup.reverse();
    for object in &backup {
        let said = bed.caller.create(&without_server_fields(object.clone()), false)?;
        ensure!(said.status == 201, "{said:?}");
        // Backup tools put the status back as well.
        let mut told = bed.caller.get(object)?.body;
        told["status"] = object["status"].clone();
        let said = bed
            .caller
            .ask(Method::PUT, &format!("{}/status", item(object)?), Some(&told), None)?;
        ensure!(said.status == 200, "{said:?}");
    }
    bed.start_operator("races-operator-restored")?;
    for object in &objects {
        bed.wait_accepted(object)?;
    }
    // The record names the new UIDs.
    let uids: Vec<Value> = objects
        .iter()
        .map(|object| Ok(bed.caller.get(object)?.body["metadata"]["uid"].clone()))
        .collect::<Result<_>>()?;
    wait_for("the record is of the restored objects", SOON, || {
        let record: ConfigMap = bed.kube.get(&format!("tailnet-claims-{TAILNET}"))?;
        let claims: Value = serde_json::from_str(&record.data.context("data")?["claims"])?;
        for (key, claim) in claims["claims"].as_object().context("claims")? {
            ensure!(uids.contains(&claim["uid"]), "{key}: {claim}");
        }
        Ok(())
    })?;
    Ok(())
}
