// Package control owns the control channel: how a reader asks a mount of hbmfs where a file's bytes lie, and gets the
// backing files themselves. It holds the wire format, which docs/reference/control-protocol.md describes for other languages and
// hbmfs.h declares for C, and the client. The server end is in package fs.
//
//	f, err := os.Open("/mnt/pile/.hbmfs/views/tokens.npy")
//	client, err := control.Dial(ctx, f.Name(), "my-reader")
//	for batch, err := range control.Batches(f, 0, math.MaxInt64, true) {
//		files, err := client.Redeem(ctx, batch.Ticket, batch.Objects())
//		... // read batch.Extents from files, past FUSE
//	}
//
// The capability is the open file. A process that has a file open may ask for its extents by ioctl, and gets a ticket. The
// same user redeems it once, within ten seconds, on the socket .hbmfs/control inside the mount. Many small files need no
// ioctl: [Client.Lookup] answers for hundreds of paths at a time, and checks the permissions itself.
//
// Pitfalls. A backing file shows all of its bytes, not only the extents. The extents that are marked [ExtentMount] lie in
// no backing file: read them from the mount. A lease lasts as long as the connection: keep the client open while the files
// are in use. After a new mount all answers are void ([ErrStale]); redeemed files go on working.
package control
