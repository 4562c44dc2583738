//! The same change without in-place resize: the pod is deleted, and another is created with the new values.

use std::time::Instant;

use kube::api::DeleteParams;

use super::recommended;
use super::scene::{POD, Scene};
use crate::common::Samples;
use crate::levels::Levels;

/// Deletes the pod without a grace period and creates it again, this many times. Measures the time until the
/// containers run with their final values. The agent must not run.
pub(super) async fn measure(scene: &Scene, times: usize) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    let mut name = POD.to_owned();
    for number in 0..times {
        let next = format!("web-5c4f-{number}");
        let amounts = recommended(number);
        let start = Instant::now();
        scene
            .pods
            .delete(&name, &DeleteParams::default().grace_period(0))
            .await?;
        scene.make_pod(&next, amounts).await?;
        let running = scene.runs(&next).await?;
        Levels::open(&running)?.hold(&scene.wanted(amounts, amounts)).await?;
        samples.push(start.elapsed());
        name = next;
    }
    Ok(samples)
}
