package cufile

import (
	"context"
	"errors"
)

// OpenMany opens many files, as Open does, and gives a File or an error for each. Small files of a mount, and members of
// its archives, are asked for in one message per few hundred, and not opened in the mount at all: thousands of them cost
// no round trip each. Where they are more than Options.Descriptors, those that are read in their order are opened again
// in the same way.
func (r *Reader) OpenMany(ctx context.Context, names []string) ([]*File, []error) {
	files, errs := make([]*File, len(names)), make([]error, len(names))
	for i, s := range r.opener.OpenMany(ctx, names) {
		name := names[i]
		if s != nil {
			files[i] = &File{r: r, name: name, source: s}
		}
		switch {
		case ctx.Err() != nil:
			errs[i] = ctx.Err()
			if files[i] != nil {
				errs[i] = errors.Join(errs[i], files[i].Close())
				files[i] = nil
			}
		case files[i] == nil: // it is no such file, or cannot be opened, and Open says why
			files[i], errs[i] = r.Open(ctx, name)
		case r.opt.Path == Direct:
			if errs[i] = files[i].proveDirect(ctx); errs[i] != nil {
				errs[i] = errors.Join(errs[i], files[i].Close())
				files[i] = nil
			}
		}
	}
	return files, errs
}
