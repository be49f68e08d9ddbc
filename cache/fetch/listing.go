package fetch

import (
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"unicode/utf8"
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

// MostName is the longest name of an object in a bucket: in bytes, but for Azure's in characters.
const MostName = 1024

// AddBelow is Add for a name that a bucket lists below a prefix. It refuses names that the bucket cannot have there, such as the directory above it:
// directories that name each other would be listed forever.
func (l *Listing) AddBelow(prefix, name, version string) error {
	if n := utf8.RuneCountInString(name); n > MostName {
		return fmt.Errorf("%w: the server lists a name of %d characters, and names have at most %d", fs.ErrInvalid, n, MostName)
	}
	if !strings.HasPrefix(name, prefix) {
		return fmt.Errorf("%w: the server lists %.100q, and was asked for names that begin with %.100q", fs.ErrInvalid, name, prefix)
	}
	return l.Add(name, version)
}

// AddDirectories is AddBelow for the directories that a bucket lists below a prefix.
func (l *Listing) AddDirectories(prefix string, dirs []string) error {
	for _, dir := range dirs {
		if err := l.AddBelow(prefix, dir, ""); err != nil {
			return err
		}
		if len(dir) == len(prefix) || !strings.HasSuffix(dir, "/") {
			return fmt.Errorf("%w: the server lists %.100q as a directory in %.100q", fs.ErrInvalid, dir, prefix)
		}
	}
	return nil
}
