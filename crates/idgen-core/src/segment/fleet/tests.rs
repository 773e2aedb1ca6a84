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

fn waits(unreported: &[i64]) -> Standing {
    Standing::Waits { unreported: unreported.to_vec() }
}

fn run(first: i64, count: u64) -> Grant {
    Grant::Granted(ValueRun { first, count, stride: 1 })
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
    assert_eq!(tag.report(1, 10, "a"), ServerReport { server: 1, max_id: 10, history: "a".to_owned(), newest: None });
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
    assert_eq!(tag.standing("b"), waits(&[1, 2]));
    tag.report(2, 300, "b");
    assert_eq!(tag.standing("b"), waits(&[1]));
    assert_eq!(tag.grant(1, "b"), Grant::Waits { unreported: vec![1] });
    assert_eq!(tag.allocation.max_id, 100);
    assert_eq!(tag.history.as_deref(), Some("a"));
    tag.report(1, 200, "b");
    assert_eq!(tag.standing("b"), Standing::Grants);
    assert_eq!(tag.history.as_deref(), Some("b"));
    assert_eq!(tag.grant(1, "b"), run(301, 1));
}

#[test]
fn new_server_counts_while_the_tag_waits_for_the_others() {
    let mut tag = fleet();
    tag.report(3, 500, "b");
    assert_eq!(tag.standing("b"), waits(&[1, 2]));
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
    assert_eq!(tag.leave(2, "b"), Err(Unreported), "its values in the lost part are unknown");
    tag.report(2, 300, "b");
    assert_eq!(tag.leave(2, "b"), Ok(()));
    assert_eq!(tag.standing("b"), waits(&[1]));
    assert_eq!(tag.allocation.max_id, 300);
    tag.report(1, 200, "b");
    assert_eq!(tag.grant(1, "b"), run(301, 1));
    assert_eq!(tag.leave(1, "b"), Ok(()));
    assert_eq!(tag.leave(1, "b"), Ok(()), "it has left");
    assert_eq!((tag.servers.len(), tag.allocation.max_id), (0, 301));
}

#[test]
fn operator_ends_the_wait_above_all_reports() {
    for (max_id, next) in [(400, 401), (150, 301)] {
        let mut tag = fleet();
        tag.report(2, 300, "b");
        tag.resume(max_id, "b");
        assert_eq!(tag.grant(1, "b"), run(next, 1));
        assert_eq!(tag.leave(1, "b"), Ok(()), "the operator has decided on its values");
        assert_eq!(tag.standing("c"), waits(&[2]));
    }
}

#[test]
fn server_that_the_operator_did_not_wait_for_is_waited_for_after_the_next_change() {
    let mut tag = fleet();
    tag.resume(400, "b");
    tag.report(2, 20, "c");
    assert_eq!(tag.standing("c"), waits(&[1]));
}

#[test]
fn exhausted_tag_grants_what_is_left_and_then_nothing() {
    let mut tag = fleet();
    assert_eq!(tag.grant(9999, "a"), run(101, 900));
    assert_eq!(tag.grant(1, "a"), Grant::Exhausted);
    assert_eq!(tag.grant(1, "b"), Grant::Waits { unreported: vec![1, 2] });
}

/// Servers 1 and 2 are granted 101 to 110 and 111 to 120, each by two requests in a row.
fn granted() -> SharedTag {
    let mut tag = fleet();
    for server in [1, 1, 2, 2] {
        assert!(matches!(tag.grant_to(server, 5, "a"), Grant::Granted(_)));
    }
    tag
}

#[test]
fn values_granted_last_are_taken_back() {
    let mut tag = granted();
    assert!(!tag.take_back(1, 106, 110, "a"), "others were granted since");
    assert!(tag.take_back(2, 114, 120, "a"), "from both requests");
    assert_eq!(tag.grant(1, "a"), run(114, 1));
    let mut tag = granted();
    assert!(tag.take_back(2, 111, 120, "a"));
    assert!(tag.take_back(1, 110, 110, "a"), "the last ones now");
    assert_eq!(tag.grant_to(2, 5, "a"), run(110, 5));
}

#[test]
fn server_that_gives_back_has_not_received_these_values() {
    let mut tag = granted();
    tag.report(2, 120, "a");
    assert!(tag.take_back(2, 114, 120, "a"));
    assert_eq!(tag.servers.iter().find(|report| report.server == 2).map(|report| report.max_id), Some(113));
    // Its report was lost, or a crash has undone what it recorded: a gap.
    tag.report(2, 120, "a");
    assert_eq!(tag.grant(1, "a"), run(121, 1));
}

#[test]
fn only_what_the_server_itself_was_granted_is_taken_back() {
    for (server, first_id, last_id) in
        [(1, 114, 120), (2, 110, 120), (2, 121, 120), (2, 114, 119), (2, 114, 121), (3, 114, 120)]
    {
        let mut tag = granted();
        assert!(!tag.take_back(server, first_id, last_id, "a"), "{server} {first_id} {last_id}");
        assert_eq!(tag, granted());
    }
}

#[test]
fn values_are_taken_back_once() {
    let mut tag = granted();
    assert!(tag.take_back(2, 114, 120, "a"));
    assert!(!tag.take_back(2, 114, 120, "a"));
    // By another server, up to the same value again.
    tag.grant_to(1, 7, "a");
    tag.report(2, 120, "a");
    assert_eq!(tag.allocation.max_id, 120);
    assert!(!tag.take_back(2, 114, 120, "a"));
}

#[test]
fn values_of_another_history_are_not_taken_back() {
    let mut tag = granted();
    assert!(!tag.take_back(2, 114, 120, "b"));
    tag.report(1, 110, "b");
    assert!(!tag.take_back(2, 114, 120, "b"));
    tag.report(2, 120, "b");
    assert_eq!(tag.standing("b"), Standing::Grants);
    assert!(!tag.take_back(2, 114, 120, "b"));
    let mut tag = granted();
    tag.resume(120, "b");
    assert!(!tag.take_back(2, 114, 120, "b"), "it has not reported");
}

#[test]
fn values_between_two_strides_are_not_granted_again() {
    let mut tag = fleet();
    (tag.allocation.stride, tag.allocation.residue) = (10, 7);
    assert_eq!(tag.grant_to(1, 2, "a"), Grant::Granted(ValueRun { first: 107, count: 2, stride: 10 }));
    assert!(tag.take_back(1, 107, 117, "a"));
    (tag.allocation.stride, tag.allocation.residue) = (1, 0);
    assert_eq!(tag.grant(1, "a"), run(107, 1), "100 was granted before, and 101 may have been");
}
