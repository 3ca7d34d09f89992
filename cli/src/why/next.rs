//! What to run next for a link that does not hold, by its reason.

use std::cmp::Reverse;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};
use tailnet_crds::Kind;
use tailnet_crds::conditions::reason;
use tailnet_crds::names::annotation::TAKES_OVER;
use tailnet_crds::names::{egress as children, ingress as of_ingress, label, tailnet as of_tailnet};

use super::link::{Link, Own};
use super::scene::Scene;
use crate::kinds;
use crate::kubectl::{Kubectl, quoted};

/// Writes commands.
#[derive(Debug)]
pub struct Next<'a> {
    /// What was read.
    pub scene: &'a Scene,
    /// How kubectl is called.
    pub kubectl: Kubectl,
    /// Namespace of the operator.
    pub operator_namespace: &'a str,
}

impl Next<'_> {
    /// Commands for `link`, in order; comments say what to do between them.
    pub fn commands(&self, link: &Link) -> Vec<String> {
        if let Some(commands) = self.of_operator(&link.reason) {
            return commands;
        }
        if let Some(target) = &link.target
            && let Some(commands) = self.of_target(&link.reason, target)
        {
            return commands;
        }
        self.of_headscale(&link.reason)
            .or_else(|| self.of_policy(&link.reason))
            .or_else(|| self.of_ingress(&link.reason, link.target.as_deref()))
            .or_else(|| self.of_agents(&link.reason))
            .or_else(|| self.of_names(&link.reason))
            .or_else(|| self.of_object(&link.reason))
            .unwrap_or_else(|| vec![self.own("describe")])
    }

    /// `kubectl … VERB KIND NAME` for the object itself.
    fn own(&self, verb: &str) -> String {
        let what = format!(
            "{verb} {} {}",
            self.scene.kind.as_str().to_ascii_lowercase(),
            quoted(&self.scene.name)
        );
        match &self.scene.namespace {
            Some(namespace) => self.kubectl.run_in(namespace, &what),
            None => self.kubectl.run(&what),
        }
    }

    fn in_operators(&self, rest: &str) -> String {
        self.kubectl.run_in(self.operator_namespace, rest)
    }

    fn operator_log(&self) -> String {
        self.in_operators("logs deployment/tailnet-operator --since=10m")
    }

    fn tailnet_spec(&self) -> &Value {
        self.scene
            .tailnet
            .as_ref()
            .map_or(&Value::Null, |tailnet| &tailnet["spec"])
    }

    fn edit_tailnet(&self) -> String {
        self.kubectl
            .run(&format!("edit tailnet {}", quoted(self.scene.tailnet_name())))
    }

    fn of_operator(&self, reason: &str) -> Option<Vec<String>> {
        if reason == Own::OperatorSilent.as_str() || reason == Own::OperatorUnseen.as_str() {
            return Some(vec![
                self.in_operators("get deployments,pods -l app.kubernetes.io/component=operator"),
                self.operator_log(),
            ]);
        }
        if reason == Own::NotObserved.as_str() {
            return Some(vec![self.operator_log()]);
        }
        if reason == Own::ProbeFailed.as_str() {
            let user = "auth can-i create pods --subresource=portforward";
            return Some(vec![self.in_operators(user)]);
        }
        None
    }

    fn of_object(&self, reason: &str) -> Option<Vec<String>> {
        let lint = self.kubectl.plugin(self.operator_namespace, "lint --cluster -");
        let get = format!("{} -o yaml | {lint}", self.own("get"));
        Some(match reason {
            reason::INVALID => vec![get, self.own("edit")],
            reason::HELD_BY_OTHER => vec![self.own("edit")],
            reason::TAILNET_NOT_FOUND => vec![
                self.kubectl.run("get tailnets"),
                "# create the Tailnet, or delete this object and create it with the right tailnetRef".to_owned(),
            ],
            reason::WAITING_FOR_HOLDER => vec![self.delete_holder()],
            reason::CLAIMS_NOT_RECORDED | reason::API_SERVER_ERROR | reason::FACTS_NOT_PUBLISHED => {
                vec![self.in_operators("get resourcequotas"), self.operator_log()]
            }
            reason::NOT_IMPLEMENTED => vec!["# nothing to run: docs/status.md says what this version does".to_owned()],
            reason::POLICY_UNUSABLE | reason::POLICY_VANISHED => {
                vec![self.in_operators(&format!("get configmaps -l {}=true", label::ADMISSION_POLICY))]
            }
            reason::DELETING => vec![format!("{} -o jsonpath='{{.metadata.finalizers}}'", self.own("get"))],
            _ => return None,
        })
    }

    /// Deletes the object that the annotation names: `<Kind>/<namespace>/<name>`, or `<Kind>/<name>`.
    fn delete_holder(&self) -> String {
        let named = self.scene.object["metadata"]["annotations"][TAKES_OVER]
            .as_str()
            .unwrap_or_default();
        let parts: Vec<&str> = named.split('/').collect();
        // Somebody else wrote it: what is not a kind of ours is no word of a command.
        let (kind, namespace, name) = match parts.as_slice() {
            [kind, namespace, name] => (kinds::parse(kind), Some(namespace), name),
            [kind, name] => (kinds::parse(kind), None, name),
            _ => return self.own("describe"),
        };
        let Some(kind) = kind else {
            return self.own("describe");
        };
        let delete = format!("delete {} {}", kind.plural(), quoted(name));
        match namespace {
            Some(namespace) => self.kubectl.run_in(namespace, &delete),
            None => self.kubectl.run(&delete),
        }
    }

    fn of_headscale(&self, reason: &str) -> Option<Vec<String>> {
        let spec = self.tailnet_spec();
        let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str);
        let endpoint = text("/api/endpoint")
            .or(text("/server"))
            .unwrap_or_default()
            .trim_end_matches('/');
        let secret = quoted(text("/apiSecretRef/name").unwrap_or_default());
        let key = quoted(text("/apiSecretRef/key").unwrap_or("apiKey"));
        let make = format!(
            "create secret generic {secret} --from-literal={key}=\"$(headscale apikeys create --expiration 90d)\""
        );
        let replace = format!(
            "{} | {}",
            self.in_operators(&format!("{make} --dry-run=client -o yaml")),
            self.kubectl.run("apply -f -")
        );
        let ca = text("/api/caConfigMapRef/name").unwrap_or("headscale-ca");
        let ca_key = text("/api/caConfigMapRef/key").unwrap_or("ca.crt");
        let ca_map = format!("create configmap {} --from-file={}=ca.pem", quoted(ca), quoted(ca_key));
        Some(match reason {
            reason::SECRET_NOT_FOUND if self.about_tailnet() => vec![self.in_operators(&make)],
            reason::SECRET_KEY_MISSING if self.about_tailnet() => vec![replace],
            reason::API_KEY_MALFORMED | reason::API_KEY_REFUSED | reason::API_KEY_EXPIRED => vec![replace],
            reason::TOO_MANY_KEYS | reason::MINT_FAILED => vec![self.operator_log()],
            reason::LEDGER_UNUSABLE => vec![self.in_operators(&format!("describe secret {}", of_tailnet::KEY_LEDGER))],
            reason::CONTROL_PLANE_UNREACHABLE
            | reason::CONNECTION_REFUSED
            | reason::SERVER_ERROR
            | reason::READ_FAILED => vec![
                format!("curl --fail --max-time 10 {}", quoted(&format!("{endpoint}/health"))),
                "# on the machine that Headscale runs on:".to_owned(),
                "systemctl status headscale".to_owned(),
            ],
            reason::NO_ANSWER => vec![format!(
                "curl --verbose --max-time 10 {}",
                quoted(&format!("{endpoint}/health"))
            )],
            reason::UNEXPECTED_ANSWER => vec![
                format!("curl --max-time 10 {}", quoted(&format!("{endpoint}/version"))),
                self.edit_tailnet(),
            ],
            reason::NAME_NOT_RESOLVED | reason::INVALID_URL => vec![
                self.edit_tailnet(),
                "# spec.api.endpoint: a URL of Headscale whose name resolves inside the cluster".to_owned(),
            ],
            reason::CERTIFICATE_NOT_TRUSTED if text("/api/caConfigMapRef/name").is_none() => vec![
                self.in_operators(&ca_map),
                self.kubectl.run(&format!(
                    "patch tailnet {} --type=merge -p {}",
                    quoted(self.scene.tailnet_name()),
                    quoted(&json!({"spec": {"api": {"caConfigMapRef": {"name": ca}}}}).to_string())
                )),
            ],
            reason::CERTIFICATE_NOT_TRUSTED | reason::CA_UNUSABLE | reason::CA_NOT_FOUND => vec![format!(
                "{} | {}",
                self.in_operators(&format!("{ca_map} --dry-run=client -o yaml")),
                self.kubectl.run("apply -f -")
            )],
            reason::TLS_FAILED => {
                let authority = endpoint
                    .split("://")
                    .nth(1)
                    .unwrap_or(endpoint)
                    .split('/')
                    .next()
                    .unwrap_or_default();
                let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
                let connect = if host == authority {
                    format!("{host}:443")
                } else {
                    authority.to_owned()
                };
                vec![format!(
                    "openssl s_client -connect {} -servername {} </dev/null | openssl x509 -noout -subject -ext subjectAltName -enddate",
                    quoted(&connect),
                    quoted(host)
                )]
            }
            reason::UNSUPPORTED_VERSION => vec![
                "# on the machine that Headscale runs on: install 0.29 or later, then".to_owned(),
                "headscale version".to_owned(),
            ],
            _ => return None,
        })
    }

    /// Whether a Secret that is missing is the Tailnet's.
    fn about_tailnet(&self) -> bool {
        matches!(self.scene.kind, Kind::Tailnet | Kind::TailnetEgress)
    }

    fn of_policy(&self, reason: &str) -> Option<Vec<String>> {
        Some(match reason {
            reason::TAG_NOT_OWNED => {
                let what = match self.tag() {
                    Some(tag) => format!("# add {} to \"tagOwners\"", json!(tag).to_string() + ": []"),
                    None => "# add the tags of the message to \"tagOwners\", each with []".to_owned(),
                };
                edit_policy(what)
            }
            reason::NO_GRANT if self.scene.kind == Kind::TailnetIngress => edit_policy(
                "# add a grant to the tag of the message, or let the Tailnet own the policy (spec.policy)".to_owned(),
            ),
            reason::NO_GRANT => edit_policy("# add a grant for the targets".to_owned()),
            reason::POLICY_UNREADABLE => edit_policy("# correct it where the message says".to_owned()),
            _ => return None,
        })
    }

    fn tag(&self) -> Option<String> {
        let tag = self.scene.object["spec"]["tag"].as_str().map(str::to_owned);
        tag.or_else(|| {
            (self.scene.kind == Kind::TailnetEgress && !self.scene.name.contains('.'))
                .then(|| format!("tag:egress-{}", self.scene.name))
        })
    }

    fn of_agents(&self, reason: &str) -> Option<Vec<String>> {
        let selector = format!(
            "{}={},{}={}",
            label::OWNER_KIND,
            self.scene.kind,
            label::OWNER_NAME,
            self.scene.name
        );
        // Agents of an ingress live beside it.
        let namespace = match (self.scene.kind, &self.scene.namespace) {
            (Kind::TailnetIngress, Some(namespace)) => namespace,
            _ => self.operator_namespace,
        };
        let run = |rest: &str| self.kubectl.run_in(namespace, rest);
        let look = vec![
            run(&format!("describe pods -l {selector}")),
            run(&format!("logs -l {selector} --tail=50")),
        ];
        if reason == Own::NodeOffline.as_str() {
            return Some(look);
        }
        Some(match reason {
            reason::UNAVAILABLE
            | reason::PROGRESSING
            | reason::NOT_JOINED
            | reason::NOT_LISTENING
            | reason::ROLLING_OUT
            | reason::CONFIG_REFUSED => look,
            reason::CHILD_NOT_OURS => vec![run(&format!(
                "get deployments,services,configmaps,secrets,networkpolicies -L {}",
                label::OWNER_NAME
            ))],
            reason::NODE_TAG_DIFFERS => vec![self.retag().unwrap_or_else(|| "headscale nodes list".to_owned())],
            _ => return None,
        })
    }

    /// What an ingress needs in its namespace: rights, certificate, backends.
    fn of_ingress(&self, reason: &str, expose: Option<&str>) -> Option<Vec<String>> {
        let namespace = self
            .scene
            .namespace
            .as_deref()
            .filter(|_| self.scene.kind == Kind::TailnetIngress)?;
        let run = |rest: &str| self.kubectl.run_in(namespace, rest);
        let spec = &self.scene.object["spec"];
        let own = spec["tls"]["secretRef"]["name"].as_str();
        let issued = of_ingress::certificate(&self.scene.name);
        let secret = quoted(own.unwrap_or(&issued));
        let backend = expose.and_then(|name| {
            let list = spec["exposes"].as_array()?;
            let backend = &list.iter().find(|expose| expose["name"] == name)?["backend"];
            Some((
                backend["namespace"].as_str().unwrap_or(namespace),
                backend["service"].as_str()?,
            ))
        });
        Some(match reason {
            reason::NAMESPACE_NOT_GRANTED => vec![
                format!("# add {namespace} to ingressNamespaces in the values of the chart, and upgrade:"),
                format!(
                    "helm get values tailnet-operator --namespace {}",
                    quoted(self.operator_namespace)
                ),
            ],
            reason::CERTIFICATE_NOT_ISSUED if own.is_some() => {
                vec![run(&format!("create secret tls {secret} --cert=tls.crt --key=tls.key"))]
            }
            reason::CERTIFICATE_INVALID
            | reason::CERTIFICATE_KEY_MISMATCH
            | reason::CERTIFICATE_NAMES
            | reason::CERTIFICATE_EXPIRED => vec![format!(
                "{} | base64 -d | openssl x509 -noout -subject -ext subjectAltName -dates",
                run(&format!("get secret {secret} -o jsonpath='{{.data.tls\\.crt}}'"))
            )],
            reason::CERTIFICATE_NOT_ISSUED | reason::CERTIFICATE_PENDING | reason::CERTIFICATE_FAILED => vec![
                run(&format!("describe certificate {}", quoted(&issued))),
                run("get certificaterequests,orders,challenges"),
            ],
            reason::ISSUER_API_MISSING => vec![self.kubectl.run("get crd certificates.cert-manager.io")],
            reason::NO_BACKEND => match backend {
                Some((namespace, service)) => {
                    vec![
                        self.kubectl
                            .run_in(namespace, &format!("get service {} -o wide", quoted(service))),
                    ]
                }
                None => vec![run("get services")],
            },
            reason::DIAL_FAILED => {
                let (namespace, service) = backend?;
                let selector = format!("kubernetes.io/service-name={service}");
                vec![
                    self.kubectl
                        .run_in(namespace, &format!("get endpointslices -l {}", quoted(&selector))),
                ]
            }
            _ => return None,
        })
    }

    /// Gives the node of an agent its tag back.
    fn retag(&self) -> Option<String> {
        let tag = self.tag()?;
        let facts = self.scene.facts.as_ref()?;
        let ours = self.scene.object["status"]["nodes"].as_array()?;
        let wrong = ours.iter().filter_map(|node| node["id"].as_str()).find(|id| {
            facts
                .nodes
                .iter()
                .any(|known| known.id == *id && !known.tags.contains(&tag))
        })?;
        Some(format!(
            "headscale nodes tag --identifier {} --tags {}",
            quoted(wrong),
            quoted(&tag)
        ))
    }

    fn of_names(&self, reason: &str) -> Option<Vec<String>> {
        let spec = self.tailnet_spec();
        let hosts = spec["dns"]["hostsConfigMap"].as_str().unwrap_or("tailnet-hosts");
        Some(match reason {
            reason::NO_HOSTS_CONFIG_MAP => vec![self.kubectl.run(&format!(
                "patch tailnet {} --type=merge -p {}",
                quoted(self.scene.tailnet_name()),
                quoted(&json!({"spec": {"dns": {"hostsConfigMap": hosts}}}).to_string())
            ))],
            reason::NOT_PUBLISHED => vec![self.in_operators(&format!(
                "get configmap {} -o jsonpath='{{.data.{}}}'",
                quoted(hosts),
                of_tailnet::HOSTS_KEY
            ))],
            reason::HOSTS_NOT_OURS => vec![
                self.in_operators(&format!("get configmap {} -o yaml", quoted(hosts))),
                "# if nobody needs it, delete it; else name another one in dns.hostsConfigMap of the Tailnet"
                    .to_owned(),
            ],
            _ => return None,
        })
    }

    fn of_target(&self, reason: &str, name: &str) -> Option<Vec<String>> {
        let list = |part: &str| self.scene.object[part]["targets"].as_array();
        let target = list("spec")?.iter().find(|target| target["name"] == name)?;
        let told = list("status").and_then(|told| told.iter().find(|told| told["name"] == name));
        let address = target["address"].as_str()?;
        let port = target["port"].as_i64()?;
        let router = told.and_then(|told| told["router"].as_str());
        let literal: Option<IpAddr> = address.parse().ok();
        Some(match reason {
            reason::NOT_ADVERTISED => match literal {
                Some(ip) => vec![
                    "# on the router, which replaces what it advertises: name its other routes too".to_owned(),
                    format!("sudo tailscale set --advertise-routes={}", IpNet::from(ip)),
                ],
                None => vec!["headscale nodes list-routes".to_owned()],
            },
            reason::NOT_APPROVED => {
                let exact = literal.and_then(|ip| self.approve(ip));
                vec![exact.unwrap_or_else(|| "headscale nodes list-routes".to_owned())]
            }
            reason::NOT_SERVING => vec![
                format!(
                    "# on {}:",
                    router.map_or_else(|| "the router".to_owned(), printable_name)
                ),
                "sudo systemctl start tailscaled && tailscale status".to_owned(),
            ],
            reason::NO_GRANT => {
                let grant = json!({"src": [self.tag()?], "dst": [address], "ip": [format!("tcp:{port}")]});
                edit_policy(format!("# add to \"grants\": {grant}"))
            }
            reason::DIAL_FAILED if self.scene.probe.is_some() => vec![
                format!(
                    "# on {}:",
                    router.map_or_else(|| "the router".to_owned(), printable_name)
                ),
                format!("nc -vz {} {port}", quoted(address)),
            ],
            reason::DIAL_FAILED => vec![self.kubectl.plugin(
                self.operator_namespace,
                &format!(
                    "why tailnetegress/{} --target {} --probe",
                    quoted(&self.scene.name),
                    quoted(name)
                ),
            )],
            reason::UNKNOWN => {
                let selector = format!("{}={}", label::OWNER_NAME, self.scene.name);
                let deployment = children::deployment(&self.scene.name);
                vec![
                    self.in_operators(&format!("get pods -l {selector}")),
                    self.in_operators(&format!("logs deployment/{deployment} --tail=50")),
                ]
            }
            _ => return None,
        })
    }

    /// Approves, on the router with the longest prefix, what it has approved already and what all targets need: the command
    /// replaces what is approved.
    fn approve(&self, address: IpAddr) -> Option<String> {
        let facts = self.scene.facts.as_ref()?;
        let covers = |prefix: &IpNet, address: &IpAddr| prefix.prefix_len() > 0 && prefix.contains(address);
        let number = |id: &str| id.parse::<u64>().unwrap_or(u64::MAX);
        let best = facts
            .routes
            .iter()
            .filter(|route| route.advertised && covers(&route.prefix, &address))
            .min_by_key(|route| (Reverse(route.prefix.prefix_len()), number(&route.node_id)))?;
        let of_node = || facts.routes.iter().filter(|route| route.node_id == best.node_id);
        let mut routes: Vec<IpNet> = of_node()
            .filter(|route| route.approved)
            .map(|route| route.prefix)
            .collect();
        let targets = self.scene.object["spec"]["targets"].as_array()?;
        let others = targets
            .iter()
            .filter_map(|target| target["address"].as_str()?.parse::<IpAddr>().ok());
        let needed = others.filter_map(|other| {
            let covering = of_node().filter(|route| route.advertised && covers(&route.prefix, &other));
            covering
                .max_by_key(|route| route.prefix.prefix_len())
                .map(|route| route.prefix)
        });
        for prefix in std::iter::once(best.prefix).chain(needed) {
            if !routes.contains(&prefix) {
                routes.push(prefix);
            }
        }
        let routes: Vec<String> = routes.iter().map(ToString::to_string).collect();
        Some(format!(
            "headscale nodes approve-routes --identifier {} --routes {}",
            quoted(&best.node_id),
            routes.join(",")
        ))
    }
}

/// The router in a comment, which ends with its line: a name from Headscale must not begin another.
fn printable_name(router: &str) -> String {
    let printable = |letter: char| if letter.is_control() { ' ' } else { letter };
    format!("router {}", router.chars().map(printable).collect::<String>())
}

/// Gets the policy, lets people edit it, and sets it.
fn edit_policy(what: String) -> Vec<String> {
    vec![
        "headscale policy get > policy.hujson".to_owned(),
        what,
        "headscale policy set --file policy.hujson".to_owned(),
    ]
}
