// Package touched keeps the reads of a job on a mount, and brings the same segments to another mount before the
// next job begins.
//
//	r, err := touched.Take(ctx, "/mnt/pile")         // what was read since the mount began
//	err = r.Save("pile.record")
//	r, err = touched.Load("pile.record")
//	p := touched.NewReplay(r, "/mnt/pile", 0, moved)
//	err = p.Run(ctx)                                 // p.Summary() says what came
//
// A record has segments, in the order of their first reads; a cache brings and evicts each as one. Files are known by their names
// and versions, so a replay leaves out those of another version. The daemon fetches, for the user who replays: a replay brings only
// files that this user may read.
package touched
