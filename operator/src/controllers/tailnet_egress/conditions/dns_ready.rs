//! `DNSReady`: are the aliases published.

use kube::ResourceExt;
use tailnet_crds::conditions::condition::DNS_READY;
use tailnet_crds::conditions::reason;
use tailnet_crds::{Tailnet, TailnetEgress};

use crate::context::Context;
use crate::hosts::{self, Published};
use crate::status::{Conditions, Truth};

pub(super) fn dns_ready(
    conditions: &mut Conditions,
    context: &Context,
    egress: &TailnetEgress,
    tailnet: Option<&Tailnet>,
) {
    let mut set = |truth, reason, message: String| conditions.set(DNS_READY, truth, reason, message);
    let aliases: usize = egress.spec.targets.iter().map(|target| target.aliases.len()).sum();
    if aliases == 0 {
        return set(Truth::True, reason::NO_NAMES, "no target has an alias".to_owned());
    }
    let Some(tailnet) = tailnet else {
        return set(
            Truth::False,
            reason::TAILNET_NOT_FOUND,
            "aliases are published nowhere: there is no Tailnet, and the hosts ConfigMap goes with it".to_owned(),
        );
    };
    match hosts::published(context, tailnet) {
        Published::NotConfigured => set(
            Truth::False,
            reason::NO_HOSTS_CONFIG_MAP,
            format!(
                "aliases are published nowhere: set spec.dns.hostsConfigMap of Tailnet {}",
                tailnet.name_any()
            ),
        ),
        Published::Missing { name } => {
            set(
                Truth::False,
                reason::NOT_PUBLISHED,
                format!("ConfigMap {name} with the hosts file is not there yet"),
            );
        }
        Published::Foreign { name, holder } => set(
            Truth::False,
            reason::HOSTS_NOT_OURS,
            format!(
                "ConfigMap {name} is not ours (it belongs to {holder}) and is left alone: remove it, or name another one in spec.dns.hostsConfigMap"
            ),
        ),
        Published::Ours { name, text } => {
            let missing = hosts::unpublished(context, egress, &text);
            if missing.is_empty() {
                set(
                    Truth::True,
                    reason::PUBLISHED,
                    match aliases {
                        1 => format!("1 alias is in ConfigMap {name}"),
                        _ => format!("{aliases} aliases are in ConfigMap {name}"),
                    },
                );
            } else {
                set(
                    Truth::False,
                    reason::NOT_PUBLISHED,
                    format!(
                        "not in ConfigMap {name} yet, or held by another object: {}",
                        missing.join(", ")
                    ),
                );
            }
        }
    }
}
