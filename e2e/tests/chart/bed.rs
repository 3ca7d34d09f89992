//! The whole cluster, the site behind its router, and how the story asks for what people would see.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tailnet_e2e::{Cluster, Headscale, Site, SiteSpec, images, wait_for};
use tailnet_headscale::Node;

/// The operator's namespace, which is the release's.
pub const OPERATOR: &str = "tailnet-system";
/// The namespace whose Pods may connect.
pub const TEAM: &str = "team-a";
/// A namespace whose Pods may not.
pub const STRANGER: &str = "team-b";
/// Name of the site and of its router's node.
pub const SITE: &str = "branch";
/// The tag of the egress's nodes: the webhook's default for an egress called team-a.
pub const TAG: &str = "tag:egress-team-a";
/// Arguments of kubectl that name the Tailnet of the seeds.
pub const TAILNET: &[&str] = &["tailnet", "demo"];
/// Arguments of kubectl that name the TailnetEgress of the seeds.
pub const EGRESS: &[&str] = &["-n", OPERATOR, "tailnetegress", "team-a"];
/// Longest wait for a state that the product reaches within seconds on an idle machine.
pub const SOON: Duration = Duration::from_secs(120);

/// Nothing here approves routes: the story does that by hand, as the people who own a tailnet would.
const POLICY: &str = r#"{
  "tagOwners": {"tag:router": [], "tag:egress-team-a": []},
  "grants": [
    {"src": ["tag:egress-team-a"], "dst": ["192.0.2.10/32"], "ip": ["tcp:5432"]},
    {"src": ["tag:egress-team-a"], "dst": ["198.51.100.20/32"], "ip": ["tcp:443"]}
  ]
}"#;

/// Everything that the steps share.
pub struct Bed {
    pub cluster: &'static Cluster,
    pub headscale: Headscale,
    pub site: Site<'static>,
    /// The API key that the bootstrap Secret holds while all is well.
    pub bootstrap: String,
    runtime: tokio::runtime::Runtime,
    keys: RefCell<Vec<String>>,
    kept_logs: RefCell<Vec<(String, String)>>,
}

impl Bed {
    /// Cluster, image, access policy, site with approved routes.
    pub fn new() -> Result<Self> {
        let archive = images::ours()?;
        let cluster = Cluster::shared();
        cluster.load_image(&archive)?;
        let headscale = cluster.headscale()?;
        headscale.set_policy(POLICY)?;
        let site = cluster.site(SiteSpec {
            echo: false,
            ..SiteSpec::new(SITE)
        })?;
        let bed = Self {
            cluster,
            bootstrap: headscale.new_api_key("24h")?,
            headscale,
            site,
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()?,
            keys: RefCell::default(),
            kept_logs: RefCell::default(),
        };
        bed.remember(&bed.bootstrap);
        let router = bed.nodes()?.into_iter().find(|node| node.given_name == SITE);
        let router = router.context("the router is not in Headscale")?;
        let client = bed.headscale.client()?;
        bed.block_on(client.approve_routes(&router.id, &router.available_routes))?;
        Ok(bed)
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A kubectl that must succeed; its standard output.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        let done = self.cluster.kubectl(args)?;
        done.success()
            .map(str::to_owned)
            .with_context(|| format!("kubectl {}", args.join(" ")))
    }

    /// `kubectl get ARGS -o json`.
    pub fn get(&self, args: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[&["get"], args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("kubectl get {} printed no JSON", args.join(" ")))
    }

    /// The items of `kubectl get ARGS -o json`.
    pub fn list(&self, args: &[&str]) -> Result<Vec<Value>> {
        let list = self.get(args)?;
        Ok(list["items"].as_array().context("a list has items")?.clone())
    }

    /// Waits until condition `type` of `object` has `status` and one of `reasons`; gives its message.
    pub fn expect(&self, object: &[&str], r#type: &str, status: &str, reasons: &[&str]) -> Result<String> {
        let what = format!(
            "{} has {type}={status}, reason {}",
            object.join(" "),
            reasons.join(" or ")
        );
        wait_for(&what, SOON, || {
            let found = self.get(object)?;
            let condition = condition(&found, r#type).with_context(|| format!("no condition {type}"))?;
            ensure!(
                condition["status"] == status && reasons.iter().any(|reason| condition["reason"] == *reason),
                "{condition}"
            );
            Ok::<_, anyhow::Error>(text(&condition["message"]))
        })
    }

    /// Waits until Tailnet and egress are Ready and every target is routed.
    pub fn expect_ready(&self) -> Result<()> {
        self.expect(TAILNET, "Ready", "True", &["Ready"])?;
        self.expect(EGRESS, "Ready", "True", &["Ready"])?;
        for (name, state) in self.target_states()? {
            ensure!(
                state == "Routed",
                "the egress is Ready and its target {name} is {state}"
            );
        }
        Ok(())
    }

    /// Every target of the egress with its state.
    pub fn target_states(&self) -> Result<Vec<(String, String)>> {
        let egress = self.get(EGRESS)?;
        let targets = egress["status"]["targets"]
            .as_array()
            .context("no targets in the status")?;
        Ok(targets
            .iter()
            .map(|target| (text(&target["name"]), text(&target["state"])))
            .collect())
    }

    /// How many events the audit log has now: a mark for [`Bed::was_not_ready_since`].
    pub fn audit_mark(&self) -> Result<usize> {
        Ok(self.cluster.audit_log()?.len())
    }

    /// Whether a status of the egress that was written after `mark` had Ready at anything but True.
    pub fn was_not_ready_since(&self, mark: usize) -> Result<bool> {
        Ok(self.cluster.audit_log()?.iter().skip(mark).any(|event| {
            let about = &event["objectRef"];
            about["resource"] == "tailnetegresses"
                && about["subresource"] == "status"
                && written_status(&event["requestObject"])
                    .and_then(|object| condition(&object, "Ready"))
                    .is_some_and(|ready| ready["status"] != "True")
        }))
    }

    /// All nodes of Headscale.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        let client = self.headscale.client()?;
        Ok(self.block_on(client.nodes())?)
    }

    /// The nodes of the egress, also those that are offline.
    pub fn our_nodes(&self) -> Result<Vec<Node>> {
        let mut nodes = self.nodes()?;
        nodes.retain(|node| node.tags.iter().any(|tag| tag == TAG));
        Ok(nodes)
    }

    /// A value of a Secret of the operator's namespace. Remembered as something that must not be told.
    pub fn secret(&self, name: &str, key: &str) -> Result<String> {
        let secret = self.get(&["-n", OPERATOR, "secret", name])?;
        let encoded = secret["data"][key]
            .as_str()
            .with_context(|| format!("Secret {name} has no {key}"))?;
        let value = String::from_utf8(STANDARD.decode(encoded)?)?;
        self.remember(&value);
        Ok(value)
    }

    /// The working API key of the Tailnet.
    pub fn working_key(&self) -> Result<String> {
        self.secret("tailnet-demo-apikey", "apiKey")
    }

    /// Puts a key into the bootstrap Secret.
    pub fn set_bootstrap(&self, key: &str) -> Result<()> {
        self.remember(key);
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "headscale-bootstrap", "namespace": OPERATOR},
            "stringData": {"apiKey": key},
        });
        self.cluster.apply(&secret.to_string()).map(drop)
    }

    /// Adds a key to those that nothing may tell.
    pub fn remember(&self, key: &str) {
        let mut keys = self.keys.borrow_mut();
        if !keys.iter().any(|known| known == key) {
            keys.push(key.to_owned());
        }
    }

    /// Every key that was in use at any time.
    pub fn keys(&self) -> Vec<String> {
        self.keys.borrow().clone()
    }

    /// Names of the Pods in the operator's namespace that `selector` finds and that are not on their way out.
    pub fn pods(&self, selector: &str) -> Result<Vec<String>> {
        let pods = self.list(&["-n", OPERATOR, "pods", "-l", selector])?;
        Ok(pods
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .map(|pod| text(&pod["metadata"]["name"]))
            .collect())
    }

    /// Deletes a Pod of ours and waits until it is gone; what it logs up to its end is kept for [`Bed::logs`].
    pub fn delete_pod(&self, name: &str) -> Result<()> {
        let (cluster, of) = (self.cluster, name.to_owned());
        let following =
            std::thread::spawn(move || cluster.kubectl(&["-n", OPERATOR, "logs", "--follow", "--all-containers", &of]));
        // The follower must be there before the Pod is gone.
        std::thread::sleep(Duration::from_secs(1));
        self.kubectl(&["-n", OPERATOR, "delete", "pod", name, "--timeout=90s"])?;
        let log = following
            .join()
            .map_err(|_| anyhow::anyhow!("following the log of {name} panicked"))??;
        ensure!(!log.stdout.is_empty(), "no log of {name}: {}", log.stderr);
        self.kept_logs.borrow_mut().push((format!("log of {name}"), log.stdout));
        Ok(())
    }

    /// The logs of all our Pods, also of those that were deleted by [`Bed::delete_pod`], each with a name.
    pub fn logs(&self) -> Result<Vec<(String, String)>> {
        let mut logs = self.kept_logs.borrow().clone();
        for pod in self.list(&["-n", OPERATOR, "pods"])? {
            let name = text(&pod["metadata"]["name"]);
            logs.push((
                format!("log of {name}"),
                self.kubectl(&["-n", OPERATOR, "logs", "--all-containers", &name])?,
            ));
            // Only a container that was restarted has one.
            let previous = self.cluster.kubectl(&["-n", OPERATOR, "logs", "--previous", &name])?;
            if previous.ok() {
                logs.push((format!("log of {name} before its restart"), previous.stdout));
            }
        }
        Ok(logs)
    }

    /// Waits until Deployment `name` has all its replicas ready, and no other Pod.
    pub fn wait_rolled_out(&self, name: &str) -> Result<()> {
        wait_for(&format!("Deployment {name} is complete"), SOON, || {
            let deployment = self.get(&["-n", OPERATOR, "deployment", name])?;
            let (wanted, status) = (&deployment["spec"]["replicas"], &deployment["status"]);
            ensure!(
                status["observedGeneration"] == deployment["metadata"]["generation"]
                    && status["updatedReplicas"] == *wanted
                    && status["readyReplicas"] == *wanted
                    && status["replicas"] == *wanted,
                "{wanted} wanted: {status}"
            );
            Ok::<_, anyhow::Error>(())
        })
    }
}

/// One step of the story: told with its time, and named in its failure.
pub fn step<T>(name: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("- {name}");
    let start = Instant::now();
    let done = act().with_context(|| format!("step \"{name}\""));
    let took = start.elapsed().as_secs_f64();
    match &done {
        Ok(_) => println!("  {took:.1} s"),
        Err(error) => println!("  FAILED after {took:.1} s: {error:#}"),
    }
    done
}

/// The condition `type` of an object.
pub fn condition(object: &Value, r#type: &str) -> Option<Value> {
    let list = object["status"]["conditions"].as_array()?;
    list.iter().find(|condition| condition["type"] == r#type).cloned()
}

/// The object with the status that a JSON patch writes.
fn written_status(patch: &Value) -> Option<Value> {
    let mut operations = patch.as_array()?.iter();
    let status = operations.find(|operation| operation["path"] == "/status")?["value"].clone();
    Some(json!({"status": status}))
}

/// A JSON string; empty for anything else.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Several objects as input for `kubectl apply -f -`.
pub fn objects(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}
