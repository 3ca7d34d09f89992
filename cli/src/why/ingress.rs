//! The exposes of an ingress, each as a link after the conditions that speak of all of them.

use serde_json::Value;
use tailnet_crds::ExposeState;
use tailnet_crds::conditions::reason;

use super::link::{Link, State};
use super::scene::Scene;

/// Adds the links.
pub fn exposes(scene: &Scene, links: &mut Vec<Link>) {
    let list = |part: &str| scene.object[part]["exposes"].as_array().map_or(&[][..], Vec::as_slice);
    for name in list("spec").iter().filter_map(|expose| expose["name"].as_str()) {
        let told = list("status")
            .iter()
            .find(|told| told["name"] == name)
            .unwrap_or(&Value::Null);
        links.push(link(scene, told).of_target(name));
    }
}

fn link(scene: &Scene, told: &Value) -> Link {
    let message = told["message"].as_str().unwrap_or_default();
    let state = serde_json::from_value(told["state"].clone()).unwrap_or(ExposeState::Unknown);
    let (link, state, reason) = match state {
        ExposeState::Serving => {
            let url = told["url"].as_str().unwrap_or_default();
            return Link::new(scene.kind, "backend", State::Ok, reason::READY_REASON, url).named("Serving");
        }
        ExposeState::NoCertificate => ("certificate", State::Broken, reason::NOT_LISTENING),
        ExposeState::NotListening => ("agent", State::Broken, reason::NOT_LISTENING),
        ExposeState::NoBackend => ("backend", State::Broken, reason::NO_BACKEND),
        ExposeState::DialFailed => ("backend", State::Broken, reason::DIAL_FAILED),
        ExposeState::Unknown => ("agent", State::Unknown, reason::UNKNOWN),
    };
    Link::new(scene.kind, link, state, reason, message)
}
