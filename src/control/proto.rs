//! Messages and stubs of `vscaled.control.v1`, generated from `proto/vscaled/control/v1/control.proto`.

#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated code; the proto file documents it"
)]

tonic::include_proto!("vscaled.control.v1");
