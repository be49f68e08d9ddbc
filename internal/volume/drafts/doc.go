// Package drafts is the daemon's side of checkpoints that clients write past FUSE: BEGIN, ADD, SEAL, PUBLISH and DROP of the control
// channel (docs/reference/control-protocol.md).
//
//	s, err := drafts.New(drafts.Options{Home: home, Log: log, Life: life, Published: volume.Appear})
//	s.Adopt()                                       // once the daemon before is gone, if there was one
//	session := s.Session(user, pidfd)               // one of each connection
//	a, err := session.Handle(ctx, h.Type, payload)  // of each frame that IsDraft
//	session.End()
//
// A draft belongs to the process that began it, not to its connection. It goes when that process ends (SO_PEERPIDFD). So it
// survives the daemon, whose next life finds its state in [Options.Life]. Other processes of the same user write files of it
// once they know its number. Where the kernel does not tell processes, a draft ends with its connection.
//
// Everything is done with the user's rights, by the kernel's own answer. A user who may make a directory in the volume may begin a
// draft, and its files count for the user's quota. Drafts, files without names, and all files have a share for each user, so that no
// user takes the share of others.
//
// Every request may come twice, since an answer is lost with the daemon that gave it. The second does nothing more.
package drafts
