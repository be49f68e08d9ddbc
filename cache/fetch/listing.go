package fetch

import (
	"fmt"
	"io/fs"
	"sync/atomic"
)

// Listing bounds the memory of the names that an origin lists. It is safe for concurrent use.
type Listing struct {
	limit int64
	used  atomic.Int64
}

// NewListing begins a listing, of at most Options.Listing bytes.
func (c *Client) NewListing() *Listing { return &Listing{limit: c.opt.Listing} }

// entryMemory is the memory of an object beside its strings, bytes.
const entryMemory = 256

// MostVersion is the longest version that is believed, in bytes.
const MostVersion = 1024

// Add counts a name that was listed, with its version where it has one already.
func (l *Listing) Add(name, version string) error {
	if len(version) > MostVersion {
		return fmt.Errorf("%w: the version of %.100q has %d bytes, more than the %d of any server's", fs.ErrInvalid, name, len(version), MostVersion)
	}
	if l.used.Add(int64(entryMemory+len(name)+len(version))) > l.limit {
		return fmt.Errorf("%w: the source lists more than %d bytes of names: name a directory below it, or allow more (--max-listing)", fs.ErrInvalid, l.limit)
	}
	return nil
}
