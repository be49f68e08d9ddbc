package checkpoints

import "context"

// Remove removes a published checkpoint, whoever owns it: one that is somewhere else by now.
func (v *Volume) Remove(ctx context.Context, name string) error {
	return v.home.Remove(ctx, name, func() {
		if v.inner != nil {
			v.inner.DropBranch(name)
		}
	})
}
