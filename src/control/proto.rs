//! Messages and stubs of `vscaled.control.v1`, generated from `proto/vscaled/control/v1/control.proto`.

#![allow(
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the proto file documents it"
)]

tonic::include_proto!("vscaled.control.v1");
