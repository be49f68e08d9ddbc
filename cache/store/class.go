package store

import (
	"context"
	"errors"

	"github.com/hbmfs/hbmfs/cache"
)

// class is the word that a span has for an error.
func class(err error) string {
	var local *localError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &local):
		return "cache disk"
	case errors.Is(err, errNoRoom):
		return "no room"
	case errors.Is(err, errMoved):
		return "moved"
	case errors.Is(err, cache.ErrDamaged):
		return "damaged"
	}
	return "origin"
}
