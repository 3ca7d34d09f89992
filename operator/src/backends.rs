//! The Services of all other namespaces, as far as the rules about backends of ingress objects read them.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use tailnet_crds::Backend;
use tailnet_crds::agent::BackendAddress;

use crate::context::Context;
use crate::desired::tailnet_ingress::Resolved;

/// `appProtocol` of a port that speaks HTTP/2 without TLS.
const H2C: &str = "kubernetes.io/h2c";

/// Keeps of a Service what tells it from others, and what it leads to: there may be thousands, and annotations and status
/// are most of each.
pub(crate) fn trim(service: &mut Service) {
    service.status = None;
    let metadata = std::mem::take(&mut service.metadata);
    service.metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        ..ObjectMeta::default()
    };
    if let Some(spec) = service.spec.take() {
        service.spec = Some(ServiceSpec {
            type_: spec.type_,
            cluster_ip: spec.cluster_ip,
            selector: spec.selector,
            ports: spec.ports.map(|ports| {
                let slim = |port: ServicePort| ServicePort {
                    name: port.name,
                    port: port.port,
                    app_protocol: port.app_protocol,
                    ..ServicePort::default()
                };
                ports.into_iter().map(slim).collect()
            }),
            ..ServiceSpec::default()
        });
    }
}

/// Where a backend of an ingress is: the cluster address of its Service, and the number of its port.
pub(crate) fn resolve(context: &Context, own: &str, backend: &Backend) -> Resolved {
    let namespace = backend.namespace.as_deref().unwrap_or(own);
    let reference = ObjectRef::<Service>::new(&backend.service).within(namespace);
    let stores = &context.stores;
    let service = if namespace == context.namespace() {
        stores.services.get(&reference)
    } else {
        stores.backends.get(&reference)
    };
    resolved(service.as_deref(), namespace, backend)
}

fn resolved(service: Option<&Service>, namespace: &str, backend: &Backend) -> Resolved {
    let nowhere = |why: String| Resolved {
        address: Err(why),
        h2c: false,
    };
    let name = format!("Service {namespace}/{}", backend.service);
    let Some(spec) = service.and_then(|service| service.spec.as_ref()) else {
        return nowhere(format!("{name} does not exist"));
    };
    let Some(address) = spec.cluster_ip.as_deref().filter(|ip| ip.parse::<IpAddr>().is_ok()) else {
        return nowhere(format!(
            "{name} has no cluster address (it is headless or of type ExternalName): use one of type ClusterIP"
        ));
    };
    let has = |port: &&ServicePort| match &backend.port {
        IntOrString::Int(number) => port.port == *number,
        IntOrString::String(name) => port.name.as_ref() == Some(name),
    };
    let found = spec.ports.iter().flatten().find(has);
    let Some((port, number)) = found.and_then(|port| Some((port, u16::try_from(port.port).ok()?))) else {
        let wanted = match &backend.port {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(name) => name.clone(),
        };
        return nowhere(format!("{name} has no port {wanted}"));
    };
    Resolved {
        address: Ok(BackendAddress {
            address: address.to_owned(),
            port: number,
        }),
        h2c: port.app_protocol.as_deref() == Some(H2C),
    }
}

/// Wakes the ingress objects that lead to this Service, and the names of their Tailnets: a Service that leads elsewhere now
/// takes away their effect.
pub(crate) fn tell_ingresses(context: &Context, service: &Service) {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    for ingress in context.stores.ingresses.state() {
        let own = ingress.namespace().unwrap_or_default();
        let leads_here = ingress.spec.exposes.iter().any(|expose| {
            expose.backend.service == name && expose.backend.namespace.as_deref().unwrap_or(&own) == namespace
        });
        if leads_here {
            context.queues.ingress.push(ObjectRef::from_obj(ingress.as_ref()));
            context
                .queues
                .names
                .push(ObjectRef::new(&ingress.spec.tailnet_ref.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tailnet_policies::snapshot::ServiceInfo;

    #[test]
    fn what_rules_read_survives_and_the_rest_does_not() {
        let whole = json!({
            "metadata": {
                "name": "web", "namespace": "team-a", "uid": "u", "resourceVersion": "7",
                "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "x".repeat(10_000) },
                "labels": { "a": "b" },
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": "10.96.0.7", "selector": { "app": "web" },
                "ports": [{ "name": "http", "port": 80, "targetPort": 8080, "nodePort": 30000 }],
            },
            "status": { "loadBalancer": {} },
        });
        let mut service: Service = serde_json::from_value(whole.clone()).unwrap();
        trim(&mut service);
        let slim = serde_json::to_value(&service).unwrap();
        assert_eq!(ServiceInfo::parse(&slim), ServiceInfo::parse(&whole));
        assert!(slim.to_string().len() < 300, "{slim}");
        assert_eq!(service.resource_version().as_deref(), Some("7"));
    }
}
