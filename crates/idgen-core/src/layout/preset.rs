//! The layouts that have a name, each as the spec it stands for.

/// Name and spec. The bits and epochs are those that the named system publishes; a preset never changes, because
/// ids made under it have to decode for ever.
pub const PRESETS: [(&str, &str); 7] = [
    // Twitter's epoch is 1288834974657 ms.
    ("snowflake", "time:41 worker:10 sequence:12 unit:1ms epoch:2010-11-04T01:42:54.657Z"),
    ("twitter", "time:41 datacenter:5 worker:5 sequence:12 unit:1ms epoch:2010-11-04T01:42:54.657Z"),
    ("sonyflake", "time:39 sequence:8 worker:16 unit:10ms epoch:2014-09-01"),
    // Instagram's epoch is 1314220021721 ms. It speaks of 41 bits of time over 13 and 10, which are 64 together: the
    // highest is the sign, so 40 can be used, until 2046.
    ("instagram", "time:40 worker:13 sequence:10 unit:1ms epoch:2011-08-24T21:07:01.721Z"),
    ("pgedge", "time:41 worker:10 sequence:12 unit:1ms epoch:2023-01-01"),
    ("seconds", "time:31 sequence:32 unit:1s epoch:2010-01-01"),
    ("js53", "time:41 worker:3 sequence:9 unit:1ms epoch:2020-01-01"),
];
