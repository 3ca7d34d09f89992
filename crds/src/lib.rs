//! API types of `tsunaro.io/v1alpha1`: the five kinds, their schemas, and the formats shared between our processes.
//!
//! A kind's module has its spec and status; [`types`] has the values that people write; [`names`] has the names that
//! processes must agree on.

#![allow(clippy::duplicated_attributes, reason = "every printer column has its own type_")]

pub mod admission_probe;
pub mod agent;
pub mod audit;
pub mod cel;
#[rustfmt::skip]
pub mod cert_manager;
pub mod conditions;
pub mod crd;
mod kind;
pub mod names;
pub mod reference;
pub mod structural;
mod tailnet;
mod tailnet_egress;
mod tailnet_gateway;
mod tailnet_ingress;
mod tailnet_site;
mod turn;
pub mod types;

/// Number or name of a Service's port.
pub use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

pub use crd::{crd_yaml, custom_resource_definition};
pub use kind::{API_VERSION, GROUP, Kind, Scope, UnknownKind, VERSION};
pub use reference::{conditions_md, reference_md};
pub use tailnet::*;
pub use tailnet_egress::*;
pub use tailnet_gateway::*;
pub use tailnet_ingress::*;
pub use tailnet_site::*;
pub use turn::{Team, Turn};
