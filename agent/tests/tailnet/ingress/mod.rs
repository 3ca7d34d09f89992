//! An ingress agent, reached from a second node: an egress agent whose targets are the ingress's ports, so that every byte
//! crosses the tailnet twice through the product itself.

mod bed;
mod certificates;
mod http;
mod malformed;
mod streams;
mod tcp;
mod web;
