package fs

import "context"

// serveControl runs what the control channel does beside answering ioctls, until ctx ends.
func (m *Mount) serveControl(ctx context.Context) { m.control.prefetch.run(ctx) }
