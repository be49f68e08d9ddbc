package weights_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

func TestPythonWeights(t *testing.T) { themes.Run(t, "weights") }
