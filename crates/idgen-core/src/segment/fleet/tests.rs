use super::*;

mod world;

fn tag() -> SharedTag {
    let allocation = Allocation { max_id: 0, stride: 1, residue: 0, upper_bound: 1000 };
    SharedTag { history: None, allocation, servers: Vec::new() }
}

/// Two servers, 1 and 2, have reported 10 and 20 under the history `a`; then 100 was granted.
fn fleet() -> SharedTag {
    let mut tag = tag();
    tag.report(1, 10, "a");
    tag.report(2, 20, "a");
    tag.grant(80, "a");
    assert_eq!(tag.allocation.max_id, 100);
    tag
}

fn run(first: i64, count: u64) -> Reply {
    Reply::Granted(ValueRun { first, count, stride: 1 })
}

#[test]
fn answer_is_what_was_asked_for() {
    let answers = |first, count, stride, residue| is_answer(&ValueRun { first, count, stride }, residue, 100, 50);
    assert!(answers(101, 50, 1, 0) && answers(103, 1, 10, 3));
    // Received before, none, too many, of another residue, no stride, past the last value.
    assert!(!answers(100, 1, 1, 0) && !answers(101, 0, 1, 0) && !answers(101, 51, 1, 0));
    assert!(!answers(104, 1, 10, 3) && !answers(113, 1, 10, 13));
    assert!(!answers(101, 1, 0, 0) && !answers(101, 1, -1, 0) && !answers(101, 1, i64::MAX, 101));
    assert!(answers(i64::MAX - 49, 50, 1, 0) && !answers(i64::MAX - 48, 50, 1, 0));
}

#[test]
fn tag_without_servers_grants_under_any_history() {
    let mut tag = tag();
    assert_eq!(tag.grant(3, "a"), run(1, 3));
    assert_eq!(tag.grant(3, "b"), run(4, 3));
    assert_eq!(tag.history, None);
}

#[test]
fn first_report_gives_the_tag_the_current_history() {
    let mut tag = tag();
    assert_eq!(tag.report(1, 10, "a"), ServerReport { server: 1, max_id: 10, history: "a".to_owned() });
    assert_eq!(tag.history.as_deref(), Some("a"));
    assert_eq!(tag.grant(2, "a"), run(11, 2));
}

#[test]
fn report_never_lowers_the_highest_value_of_a_server() {
    let mut tag = fleet();
    assert_eq!(tag.report(2, 5, "b").max_id, 20);
    assert_eq!(tag.servers.len(), 2);
}

#[test]
fn other_history_grants_nothing_until_every_server_has_reported() {
    let mut tag = fleet();
    assert_eq!(tag.unreported("b"), [1, 2]);
    tag.report(2, 300, "b");
    assert_eq!(tag.unreported("b"), [1]);
    assert_eq!(tag.grant(1, "b"), Reply::Waits { unreported: vec![1] });
    assert_eq!(tag.allocation.max_id, 100);
    assert_eq!(tag.history.as_deref(), Some("a"));
    tag.report(1, 200, "b");
    assert!(tag.unreported("b").is_empty());
    assert_eq!(tag.history.as_deref(), Some("b"));
    assert_eq!(tag.grant(1, "b"), run(301, 1));
}

/// As by a snapshot of the coordinator's disk: nothing here tells, but the servers have received more.
#[test]
fn server_that_has_received_more_than_was_granted_ends_the_history() {
    let mut set_back = fleet();
    // Not a server that is attached just now, nor one that has received what was granted.
    set_back.report(3, 500, "a");
    set_back.report(1, 500, "a");
    assert!(set_back.unreported("a").is_empty());
    set_back.report(2, 700, "a");
    assert_eq!(set_back.unreported("a"), [3, 1]);
    assert_eq!(set_back.grant(1, "a"), Reply::Waits { unreported: vec![3, 1] });
    set_back.report(3, 900, "a");
    set_back.report(1, 500, "a");
    assert_eq!(set_back.grant(1, "a"), run(901, 1));
}

#[test]
fn new_server_counts_while_the_tag_waits_for_the_others() {
    let mut tag = fleet();
    tag.report(3, 500, "b");
    assert_eq!(tag.unreported("b"), [1, 2]);
    tag.report(1, 10, "b");
    tag.report(2, 10, "b");
    assert_eq!(tag.grant(1, "b"), run(501, 1));
}

#[test]
fn report_raises_a_tag_that_grants_too() {
    let mut tag = fleet();
    tag.report(3, 500, "a");
    assert_eq!(tag.grant(1, "a"), run(501, 1));
}

#[test]
fn server_that_leaves_still_counts() {
    let mut tag = fleet();
    tag.report(2, 300, "b");
    tag.leave(2);
    assert_eq!(tag.unreported("b"), [1]);
    assert_eq!(tag.allocation.max_id, 300);
    tag.report(1, 200, "b");
    assert_eq!(tag.grant(1, "b"), run(301, 1));
    tag.leave(1);
    tag.leave(1);
    assert_eq!((tag.servers.len(), tag.allocation.max_id), (0, 301));
}

#[test]
fn operator_ends_the_wait_above_all_reports() {
    for (max_id, next) in [(400, 401), (150, 301)] {
        let mut tag = fleet();
        tag.report(2, 300, "b");
        tag.resume(max_id, "b");
        assert_eq!(tag.grant(1, "b"), run(next, 1));
        tag.leave(1);
        assert_eq!(tag.unreported("c"), [2]);
    }
}

#[test]
fn server_that_the_operator_did_not_wait_for_is_waited_for_after_the_next_change() {
    let mut tag = fleet();
    tag.resume(400, "b");
    tag.report(2, 20, "c");
    assert_eq!(tag.unreported("c"), [1]);
}

#[test]
fn exhausted_tag_grants_what_is_left_and_then_nothing() {
    let mut tag = fleet();
    assert_eq!(tag.grant(9999, "a"), run(101, 900));
    assert_eq!(tag.grant(1, "a"), Reply::Exhausted);
    assert_eq!(tag.grant(1, "b"), Reply::Waits { unreported: vec![1, 2] });
}
