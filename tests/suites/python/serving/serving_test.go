package serving_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

func TestServingPeers(t *testing.T) { themes.RunPeers(t, "serving") }
