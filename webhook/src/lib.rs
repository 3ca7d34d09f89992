//! The admission webhook: decides every CREATE and UPDATE of our five kinds with the rules of `tailnet-policies`.
//!
//! It calls no Headscale, lists nothing while a request waits, and writes nothing but its own CA, the `caBundle` of its
//! two configurations and the failurePolicy of one entry; so a dry run takes the same path and gives the same answer.

pub mod args;
pub mod arming;
pub mod audit;
pub mod bypass;
pub mod changed;
pub mod clock;
pub mod configuration;
pub mod connections;
pub mod live;
pub mod metrics;
pub mod organisation;
pub mod published;
pub mod rbac;
pub mod reach;
pub mod record;
pub mod review;
pub mod room;
pub mod router;
pub mod run;
pub mod server;
pub mod snapshot;
pub mod subject;
pub mod sync;
pub mod tls;
pub mod watches;
