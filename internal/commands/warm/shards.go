package warm

import (
	"context"
	"os"
	"path/filepath"

	"github.com/hbmfs/hbmfs/control"
)

// shards tells which backing files of one mount are its shards, and which are segments of its cache: a view may have both. A shard
// is a file of the mount itself, by the name that the daemon has for it.
type shards struct {
	root   string
	client *control.Client // nil where the daemon cannot be asked
	known  map[uint64]bool // by object: it is a shard
}

// learn asks for the objects of a batch of a file, which has a ticket for them. Bytes whose place it cannot learn count as the
// cache's.
func (s *shards) learn(ctx context.Context, path string, batch *control.Batch) {
	objects := batch.Objects()
	all := true
	for _, o := range objects {
		_, known := s.known[o]
		all = all && known
	}
	root, err := control.Root(path)
	if all && root == s.root || err != nil {
		return
	}
	if root != s.root || s.client == nil || s.client.Gone() || s.client.Epoch() != batch.Epoch {
		s.close()
		s.root, s.known = root, map[uint64]bool{}
		if s.client, err = control.Dial(ctx, root, "hbmfs warm"); err != nil {
			s.client = nil
			return
		}
	}
	named, err := s.client.Names(ctx, batch.Ticket, objects)
	if err != nil {
		return
	}
	for _, n := range named {
		info, err := os.Stat(filepath.Join(root, n.Name))
		s.known[n.Object] = err == nil && info.Mode().IsRegular()
	}
}

// local tells whether an object is a shard.
func (s *shards) local(object uint64) bool { return s.known[object] }

func (s *shards) close() {
	if s.client != nil {
		_ = s.client.Close() // nothing is leased
	}
	s.client = nil
}
