//! Messages and stubs of `vscaled.report.v1`, generated from `proto/vscaled/report/v1/report.proto`.

#![allow(
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code; the proto file documents it"
)]

tonic::include_proto!("vscaled.report.v1");
