//! Tests of the API types: formats, schemas, rules in CEL, fixtures.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod cel;
mod cert_manager;
mod formats;
mod schema;
mod seeds;
