package dataset

import (
	"context"
	"errors"
	"log/slog"

	"github.com/hbmfs/hbmfs/layout"
)

// Many are datasets that are opened as they are asked for, and read until Close.
type Many struct {
	Options Options      // of each; MaxOpen is Many's own
	Note    func(string) // hears why a remote source takes long

	opened  []*Dataset
	indexed []*layout.Volume
}

// Objects lists a source, a directory or an address.
func (m *Many) Objects(ctx context.Context, source string) ([]*layout.Object, error) {
	opt := m.Options
	opt.MaxOpen = 64
	d, err := Open(ctx, source, &opt, slog.New(slog.DiscardHandler), m.Note, nil)
	if err != nil {
		return nil, err
	}
	m.opened = append(m.opened, d)
	return d.Listing.Objects, nil
}

// Index recognizes the sets of a source.
func (m *Many) Index(ctx context.Context, source string) (*layout.Volume, error) {
	objects, err := m.Objects(ctx, source)
	if err != nil {
		return nil, err
	}
	v, err := layout.Index(ctx, objects, layout.Options{})
	if err != nil {
		return nil, err
	}
	m.indexed = append(m.indexed, v)
	return v, nil
}

// Problems are those of all listings and indexes: the objects that they left out.
func (m *Many) Problems() (all []layout.Problem) {
	for _, d := range m.opened {
		all = append(all, d.Listing.Problems...)
	}
	for _, v := range m.indexed {
		all = append(all, v.Problems()...)
	}
	return all
}

// Close ends all reads.
func (m *Many) Close() error {
	var errs []error
	for _, d := range m.opened {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
