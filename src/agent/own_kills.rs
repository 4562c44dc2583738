//! Kills that are blamed on limits that a pass lowered → the controller.

use tokio::sync::mpsc;

use super::oom::Kills;
use crate::reconcile::controller::Event;

/// Sends the controller the kills that are blamed on limits that a pass lowered, until there are no more kills.
pub(super) async fn report_own_kills(mut kills: Kills, events: mpsc::Sender<Event>) {
    let newest = |kills: &mut Kills| kills.borrow_and_update().back().map(|kill| kill.id.clone());
    let mut told = newest(&mut kills);
    while kills.changed().await.is_ok() {
        let news: Vec<_> = {
            let all = kills.borrow_and_update();
            let news = all.iter().rev().take_while(|kill| Some(&kill.id) != told.as_ref());
            news.cloned().collect()
        };
        told = news.first().map(|kill| kill.id.clone()).or(told);
        for kill in news.into_iter().rev().filter(|kill| kill.own_write.is_some()) {
            if events.send(Event::Killed(kill)).await.is_err() {
                return;
            }
        }
    }
}
