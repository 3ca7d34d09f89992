//! The gateway: names and images.

use tailnet_crds::Kind;
use tailnet_crds::types::{Dns1035Label, FormatError, ImageRef, Text};

use crate::finding::Severity;
use crate::object::Object;
use crate::report::{Report, cut};
use crate::table::{CWV, Check, Operations, Rule};

const GATEWAY: &[Kind] = &[Kind::TailnetGateway];

/// Longest name of a gateway: `-coredns`, `-headless` and a StatefulSet's suffixes must fit behind it.
pub(crate) const MAX_NAME: usize = 40;

/// Names of the gateway and its DNS Service.
pub static TN501: Rule = Rule {
    id: "TN501",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "metadata.name, spec.dns.serviceName",
    message: "a gateway's name is a DNS-1035 label of at most 40 characters, its DNS Service's one of at most 63",
    why: "The name also names the gateway's Services and StatefulSet, which add suffixes to it.",
    example: "kind: TailnetGateway\nmetadata: { name: 1-gateway }",
    fix: "Begin with a letter, use lower-case letters, digits and dashes, and stay within 40 characters.",
    check: Check::Object(gateway_names),
};

/// Images are pinned.
pub static TN502: Rule = Rule {
    id: "TN502",
    kinds: GATEWAY,
    operations: Operations::WRITE,
    layers: CWV,
    severity: Severity::Deny,
    security: false,
    field: "spec.image, spec.dns.image, spec.forwardImage",
    message: "an image has a full version tag or a digest",
    why: "The operator never restarts a gateway: the Pod starts again when its node does, and must then be the same software. `latest`, a bare \
          name and a major-only tag mean something else every week.",
    example: "kind: TailnetGateway\nspec:\n  image: ghcr.io/tailscale/tailscale:latest",
    fix: "Write a version such as `ghcr.io/tailscale/tailscale:v1.102.4`, or a digest.",
    check: Check::Object(pinned_images),
};

fn gateway_names(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    // An empty name is one that the API server has still to generate; it asks again with the whole name.
    if !object.name.is_empty() {
        let problem = match object.name.parse::<Dns1035Label>() {
            Err(error) => Some(error.to_string()),
            Ok(_) if object.name.len() > MAX_NAME => Some(format!("has {} characters", object.name.len())),
            Ok(_) => None,
        };
        if let Some(problem) = problem {
            let said = report.said(object.kind, "", 0);
            report.invalid(
                "metadata.name",
                &object.name,
                format!("{said}: it {}", cut(&problem, 80)),
            );
        }
    }
    if let Err(FormatError::Unreadable(problem)) = spec.dns.service_name.parse() {
        report.invalid(
            "spec.dns.serviceName",
            spec.dns.service_name.as_str(),
            format!("{problem}; it names a Service"),
        );
    }
}

fn pinned_images(object: &Object, report: &mut Report<'_>) {
    let Some(spec) = object.gateway() else { return };
    pinned("spec.image", &spec.image, report);
    pinned("spec.dns.image", &spec.dns.image, report);
    if let Some(image) = &spec.forward_image {
        pinned("spec.forwardImage", image, report);
    }
}

fn pinned(path: &str, text: &Text<ImageRef>, report: &mut Report<'_>) {
    match text.parse() {
        Err(FormatError::Unreadable(problem)) => {
            report.invalid(path, text.as_str(), problem);
        }
        Ok(image) if !image.is_pinned() => {
            let detail = report.said(Kind::TailnetGateway, "spec.image", 0);
            report.invalid(path, text.as_str(), detail);
        }
        Err(FormatError::NotCanonical { .. }) | Ok(_) => {}
    }
}
