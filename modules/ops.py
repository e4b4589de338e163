"""The pure ops: layers' maths, without records. The layers here and in `weft.nnx` are two shells over them."""

from weft.modules.conv import conv as conv
from weft.modules.conv import lax_padding as lax_padding
from weft.modules.dropout import dropout as dropout
from weft.modules.dtypes import as_array as as_array
from weft.modules.dtypes import cast as cast
from weft.modules.dtypes import compute_dtype as compute_dtype
from weft.modules.dtypes import promote as promote
from weft.modules.linear import add_bias as add_bias
from weft.modules.linear import attend as attend
from weft.modules.linear import embed as embed
from weft.modules.linear import linear as linear
from weft.modules.moments import batch_norm as batch_norm
from weft.modules.moments import canonical_axes as canonical_axes
from weft.modules.moments import moments as moments
from weft.modules.moments import norm as norm
from weft.modules.moments import normalize as normalize
from weft.modules.moments import running as running
from weft.modules.op import hashable as hashable
from weft.modules.op import op as op
from weft.modules.pool import avg_pool as avg_pool
from weft.modules.pool import max_pool as max_pool
from weft.modules.pool import min_pool as min_pool
from weft.modules.pool import pool as pool
