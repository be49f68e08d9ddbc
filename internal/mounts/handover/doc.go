// Package handover keeps a mount alive when its daemon goes: somebody outside, the holder, has the descriptor of /dev/fuse and
// a small state. While a descriptor of the connection is open anywhere, readers wait and get no error. The next daemon takes
// both, asks the kernel to send unanswered requests again (FUSE_NOTIFY_RESEND, Linux 6.9), and goes on. Upgrade, crash and the
// out-of-memory killer are one case: the old process is gone, and has said nothing.
//
// # Holders
//
//   - the keeper: a process that the daemon starts ([Keep] is its work). It starts the next daemon, and swaps daemons on request;
//   - systemd's descriptor store (FileDescriptorStoreMax= of the unit), where it started the daemon;
//   - any other program that starts daemons, and speaks the protocol below.
//
// A [Copy] of a keeper's descriptors is for a process that does not end with it: the host of hbmfs-csi, and its
// plugin.
//
// A daemon sees them all as a [Life].
//
// # The protocol
//
// Holder and daemon share a SOCK_SEQPACKET socket, whose number the holder puts into the environment ([Env]). A message is
// lines of NAME=VALUE, those of sd_notify(3) where it has a word for it, and at most one descriptor.
//
//	daemon → holder
//	FDSTORE=1 FDNAME=x     (descriptor) keep it; an older one of that name goes
//	FDSTOREREMOVE=1 FDNAME=x; with LETGO=1 no daemon that waits for its turn may have it any longer
//	START=argv             (descriptor: the program) how the next daemon is started; a JSON array of words in base64; with SPARE=1 one
//	                       is started at once, and waits for its turn
//	PREPARED=1             it has read the state, can adopt it, and waits
//	FAILED=text            it cannot
//	READY=1                it has the mount; the second time: it answers the kernel
//	NEWS=1                 (descriptor: a pipe) for spares, which hear there of keepers that follow this one; passed on to a spare that is there already
//	SENTINEL=tid           the thread that ends first when it is killed
//	RETIRE=1               (descriptor) another keeper relieves this one
//	TAKEN=1                another daemon has gone on with the mount by itself, and has a keeper of its own
//	STOPPING=1             the mount is over: no other daemon is wanted
//	SETTLE=n               say SETTLED=n once copies have all that was told before
//	holder → daemon
//	FDNAME=x               (descriptor) from the store, one message each
//	PIDFD=1                (descriptor) of the process that serves
//	HELD=1                 (descriptor: of NEWS) these were all; DAEMON=pid is the process that serves or did, SERVED=1 where it does still, NICE=n what its
//	                       nice value is; REST=1 to a spare: readers come first
//	TELLS=1                (descriptor: the other end of a NEWS) for the spare that was started to wait for this daemon's end
//	KEEPS=1                a new keeper has all that it must know
//	SPARE=pid              that daemon waits for its turn
//	SETTLED=n              the answer to SETTLE
//	FDNAME=x               (descriptor) kept since, or with FDSTOREREMOVE=1 forgotten; before ADOPT
//	ADOPT=crash|upgrade DIED=n   nobody else serves; n is CLOCK_MONOTONIC at the end of the daemon before, in ns
//
// systemd gives descriptors at the start (LISTEN_FDS), and the next daemon adopts at once. One that cannot leaves a count of such daemons in the store; the third
// takes all descriptors back.
//
// # The state
//
// Constant data of a mount is in the states: a sealed memfd of sections, with a version and a checksum. Each part of a daemon declares
// its section by a [State]. A section, or a format, of an unknown version is refused before anything was changed. Changing data is
// memory that all lives share: a [Journal] of records, and tables that parts map. A holder never reads any of them.
//
// # Pitfalls
//
// A process may be killed between any two instructions, and the next ones with it. So messages for a holder or a daemon wait in its socket before it starts: it holds the mount from its first moment. And a
// daemon that goes on without a keeper starts a spare and a keeper before it answers. A record is written before its consequence can be seen, and an action that is done twice does no harm. In shared
// memory one word makes an entry valid, and is written last. The kernel sends requests again with the top bit of their number set ([Resent]), and the same number otherwise. That tells an open whose answer
// was lost from a second one.
//
// A holder that gets no daemon to serve, three times or for 30 s, aborts the connection: readers get errors, and never hang. So it does
// where a hundred daemons in a row crash within a second, or are killed before they serve. A daemon serves once it has said READY a second
// time. The first says that it has the mount, which it may still fail to load.
package handover
